"""`python -m paper`: the paper's tables and figures."""

from paper.cli import main

if __name__ == "__main__":
    main()
