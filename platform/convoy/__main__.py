"""`python -m convoy`: the `convoy` command."""

from convoy.cli.main import main

if __name__ == "__main__":
    main()
