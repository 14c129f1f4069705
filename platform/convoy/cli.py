"""The `convoy` command."""

import click


@click.group()
def main() -> None:
    """Look at, move and check Convoy's jobs."""
