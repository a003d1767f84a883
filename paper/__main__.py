"""`python -m paper`: the command line of the reproduction."""

from paper.cli import main

if __name__ == "__main__":
    main()
