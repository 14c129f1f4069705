"""The `convoy` command, run in this process."""

from click.testing import CliRunner, Result

from convoy.cli.main import main


def convoy(*words: object, columns: int = 200) -> Result:
    return CliRunner().invoke(main, list(map(str, words)), env={"COLUMNS": str(columns)})


def assert_refused(line: str, *words: object) -> None:
    """The command ends as one with bad input does: with this line alone, and exit code 2."""
    done = convoy(*words)
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", f"convoy: {line}\n")
