"""The `convoy` command."""

import click

from convoy.cli.groups import Lazy, PlainErrors

COMMANDS = {
    "audit": Lazy("audit:audit", "Recompute what the claims of FILE imply of each other."),
    "checkpoints": Lazy("checkpoints:checkpoints", "Look at, check, copy and prune checkpoints."),
    "compare": Lazy("compare:compare", "Compare the second RESULT with the first."),
    "doctor": Lazy("setup:doctor", "Report what this machine can do and what is wrong."),
    "drain": Lazy("run:drain", "Have the run of JOB save and end."),
    "drill": Lazy("drill:drill", "Train a small job on this machine with a real gang."),
    "export": Lazy("job:export", "Write JOB's weights to FOLDER."),
    "init": Lazy("setup:init", "Write both flows and their default configurations below DIR."),
    "list": Lazy("list:list_jobs", "List the jobs under the root, the one that started last first."),
    "logs": Lazy("logs:logs", "Print what a rank of JOB printed in one generation of the gang."),
    "plan": Lazy("plan:plan", "What a run will need and take, before it starts."),
    "prices": Lazy("prices:prices", "Prices of machines: known ones, and reading them anew."),
    "replay": Lazy("job:replay", "Export JOB's event log to other tools."),
    "rewind": Lazy("job:rewind", "Make JOB resume from an earlier checkpoint."),
    "run": Lazy("run:run", "Run FLOW until its job is done."),
    "show": Lazy("job:show", "Summarise JOB from its event log."),
    "tail": Lazy("job:tail", "Print JOB's steps and events as they come."),
}


@click.group(cls=PlainErrors, lazy=COMMANDS)
@click.version_option(package_name="metaflow-convoy")
def main() -> None:
    """Look at, move and check Convoy's jobs."""


if __name__ == "__main__":
    main()
