"""`python -m frcl` is `frcl`."""

from frcl.cli import main

if __name__ == "__main__":
    main()
