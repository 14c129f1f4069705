"""`convoy audit`: whether the figures of a page can all be true."""

import sys
from pathlib import Path

import click

from convoy.audit.audit import audit as audit_claims
from convoy.audit.findings import audit_page
from convoy.audit.reader import read_claims
from convoy.cli.options import JSON, print_result
from convoy.config.errors import ConfigError

INCONSISTENT = 3
"""Exit code where claims cannot all be true."""


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@JSON
def audit(file: Path, as_json: bool) -> None:
    """Recompute what the claims of FILE imply of each other and of the hardware's limits.

    FILE is YAML; docs/reference/claims.md has its keys. Exit code 0 if the claims agree, 3 if some cannot be true, and
    2 if FILE cannot be read. What is only unlikely, or cannot be checked, does not change it.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise ConfigError(f"{file}: cannot be read: {reason}") from None
    result = audit_claims(read_claims(text, str(file)))
    print_result(result, audit_page(result), as_json)
    if not result.consistent:
        sys.exit(INCONSISTENT)
