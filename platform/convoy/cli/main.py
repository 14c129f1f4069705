"""The `convoy` command; modules of subcommands are imported when they are used, so that `convoy --help` is quick."""

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import click


class LazyCommand(NamedTuple):
    """A command of a module that is not imported yet."""

    path: str
    """`MODULE:NAME` in convoy.cli."""
    summary: str
    """How the command's own help begins."""


class LazyGroup(click.Group):
    def __init__(self, *args: Any, lazy: Mapping[str, LazyCommand], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        module, _, name = self.lazy[cmd_name].path.partition(":")
        command: click.Command = getattr(importlib.import_module(f"convoy.cli.{module}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.lazy[name].summary) for name in sorted(self.lazy)])


class PlainErrorGroup(LazyGroup):
    """Bad input is one line and exit code 2; an outage, or another writer, is one line and exit code 1."""

    def invoke(self, ctx: click.Context) -> object:
        from pydantic import ValidationError

        from convoy.config.errors import ConfigError, first_mistake
        from convoy.storage import StoreUnavailable

        try:
            return super().invoke(ctx)
        except ConfigError as error:
            raise BadInput(str(error)) from None
        except ValidationError as error:  # of an object that a job keeps, such as a configuration
            raise BadInput(str(ConfigError(f"{error.title}: {first_mistake(error)}"))) from None
        except StoreUnavailable as error:
            raise CommandFailed(str(error)) from None


class CommandFailed(click.ClickException):
    """Ends the command with one line on stderr and exit code 1."""

    def show(self, file: Any = None) -> None:
        click.echo(f"convoy: {self.message}", err=True)


class BadInput(CommandFailed):
    """Ends it with exit code 2."""

    exit_code = 2


COMMANDS = {
    "audit": LazyCommand("results:audit", "Recompute what the claims of FILE imply of each other."),
    "bench": LazyCommand("bench:bench", "What benchmarks measured, over several of them."),
    "checkpoints": LazyCommand("checkpoints:checkpoints", "Look at, check, copy and prune checkpoints."),
    "compare": LazyCommand("results:compare", "Compare the second RESULT with the first."),
    "doctor": LazyCommand("run:doctor", "Report what this machine can do and what is wrong."),
    "drain": LazyCommand("run:drain", "Have the run of JOB save and end."),
    "drill": LazyCommand("drill:drill", "Train a small job on this machine with a real gang."),
    "export": LazyCommand("job:export", "Write JOB's weights to FOLDER."),
    "infra": LazyCommand("infra:infra", "Connect a stack with a configuration, check the account, list what is left."),
    "init": LazyCommand("run:init", "Write both flows and their default configurations below DIR."),
    "list": LazyCommand("job:list_jobs", "List the jobs under the root, the one that started last first."),
    "logs": LazyCommand("job:logs", "Print what a rank of JOB printed in one generation of the gang."),
    "net": LazyCommand("net:net", "Measure the network of a gang, and find out what carried its traffic."),
    "plan": LazyCommand("plan:plan", "What a run will need and take, before it starts."),
    "prices": LazyCommand("prices:prices", "Prices of machines: known ones, and reading them anew."),
    "replay": LazyCommand("job:replay", "Send JOB's event log to other tools."),
    "rewind": LazyCommand("job:rewind", "Make JOB resume from an earlier checkpoint."),
    "run": LazyCommand("run:run", "Run FLOW until its job is done."),
    "show": LazyCommand("job:show", "Summarise JOB from its event log."),
    "tail": LazyCommand("job:tail", "Print JOB's steps and events as they come."),
}


@click.group(cls=PlainErrorGroup, lazy=COMMANDS)
@click.version_option(package_name="metaflow-convoy")
def main() -> None:
    """Look at, move and check Convoy's jobs."""
