"""The `convoy` command: a module for each subcommand, which imports what it needs when it runs."""
