"""`convoy init [DIR]`: a configuration and both flows, to edit; and `convoy doctor`."""

import sys
from pathlib import Path

import click
from rich.console import Console

from convoy.config.errors import ConfigError
from convoy.config.loader import shipped
from convoy.doctor import run_doctor

WRITTEN = (
    ("flows", "train_flow.py"),
    ("flows", "benchmark_flow.py"),
    ("configs", "train/default.yaml"),
    ("configs", "bench/default.yaml"),
)
"""Laid out as the repository is: each flow reads its default configuration from the folder next to its own."""


@click.command()
@click.argument("folder", metavar="[DIR]", type=click.Path(file_okay=False, path_type=Path), default=Path())
def init(folder: Path) -> None:
    """Write both flows and their default configurations below DIR, to edit. Overwrites nothing.

    Other presets need no file of yours: `--config run NAME` takes them by name.
    """
    texts = {folder / kind / name: (shipped(kind) / name).read_text() for kind, name in WRITTEN}
    if there := [path for path in texts if path.exists()]:
        raise ConfigError(f"init: {', '.join(map(str, there))}: already there; nothing was written")
    for path, text in texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        except OSError as error:
            raise ConfigError(f"init: {path}: cannot be written: {error.strerror}") from None
        click.echo(path)
    click.echo(f"To train: python {folder / 'flows' / 'train_flow.py'} run")


@click.command()
def doctor() -> None:
    """Report what this machine can do and what is wrong; exit code 1 if something is."""
    sys.exit(run_doctor(Console()))
