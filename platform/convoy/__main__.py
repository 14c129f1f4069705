"""`python -m convoy`: the `convoy` command."""

from convoy.cli import main

if __name__ == "__main__":
    main()
