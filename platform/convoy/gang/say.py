"""What an agent prints. Training must not end because nobody is left to read it."""

import contextlib
import sys


def say(line: str, *, error: bool = False) -> None:
    """Print a line at once; it is lost where whoever read this process's output is gone, as with a closed terminal."""
    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr if error else sys.stdout, flush=True)
