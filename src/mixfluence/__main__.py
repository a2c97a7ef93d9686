"""`python -m mixfluence` is the command line."""

from mixfluence.cli import main

if __name__ == "__main__":
    main()
