"""Run suites of benchmarks on this host, without Metaflow: a JSON file for each case.

    python benchmarks/run_benchmarks.py --output-dir results/
    python benchmarks/run_benchmarks.py --model gpt2-124m --nodes 2 --batch-size 8 --sequence-length 512 \\
        --iterations 100 --output-dir results/

A model without room on this host, such as `--model gpt-7b` on most, is refused with the memory that it needs. What is
not given is as in `configs/bench/default.yaml`, or in the file of `--config`. Cases of a group take turns in one gang;
`generate_report.py` makes a report of the folder. docs/guides/benchmarks.md says how to read it.
"""

import importlib.util
import sys

if importlib.util.find_spec("convoy") is None:
    how = "in a clone run `make train`, then `. .venv/bin/activate`; elsewhere `pip install metaflow-convoy`"
    print(f"convoy: {sys.executable} has no convoy: {how}", file=sys.stderr)
    sys.exit(2)

import math
import shlex
from pathlib import Path
from typing import Any

import click

from convoy.benchmark.suites.registry import SUITES
from convoy.config.benchmark import read_bench, resolve_bench
from convoy.config.errors import ConfigError
from convoy.config.loader import configs_folder, merge_config, read_overrides

ENOUGH_ROUNDS = 20

MEANINGS = "\n".join(f"  {suite.name:12}{suite.meaning}" for suite in SUITES)


@click.command(epilog=f"\b\nSuites:\n{MEANINGS}")
@click.option("--output-dir", type=click.Path(file_okay=False, path_type=Path), required=True, help="For the results.")
@click.option("--config", "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="As YAML.")
@click.option("--suite", "suites", multiple=True, help="As listed below; may be given again.")
@click.option("--model", "models", multiple=True, help="A preset of configs/models/; may be given again.")
@click.option("--nodes", type=click.IntRange(min=1), help="Processes that stand for nodes, on this host.")
@click.option("--batch-size", type=click.IntRange(min=1), help="Sequences of a step over all ranks.")
@click.option("--sequence-length", type=click.IntRange(min=1), help="Tokens of a sequence.")
@click.option("--iterations", type=click.IntRange(min=6), help="Measured steps of each case.")
@click.option("--set", "words", default="", help="key=value words laid on all this, e.g. run.train.compile=true.")
def main(output_dir: Path, file: Path | None, words: str, **options: Any) -> None:
    """Measure, and write what was measured."""
    from convoy.launch.benchmark.groups import run_here

    try:
        base = read_bench((file or configs_folder() / "bench" / "default.yaml").read_text())
        config = resolve_bench(merge_config(base, configuration(**options)), read_overrides(words))
        command = shlex.join(["python", "benchmarks/run_benchmarks.py", *sys.argv[1:]])
        ran = run_here(config, output_dir, lambda line: click.echo(line, err=True), command)
    except ConfigError as error:
        click.echo(f"run_benchmarks: {error}", err=True)
        sys.exit(2)
    failed = [each.group.name for each in ran if each.failure]
    click.echo(f"{sum(len(each.cases) for each in ran)} cases are in {output_dir}")
    if failed:
        click.echo(f"failed: {', '.join(failed)}", err=True)
        sys.exit(1)


def configuration(
    suites: tuple[str, ...],
    models: tuple[str, ...],
    nodes: int | None,
    batch_size: int | None,
    sequence_length: int | None,
    iterations: int | None,
) -> dict[str, Any]:
    """What the options ask for, as keys of a benchmark's configuration."""
    keys = (
        ("cluster", "nodes", nodes),
        ("train", "global_batch", batch_size),
        ("data", "sequence_length", sequence_length),
    )
    tree: dict[str, Any] = {"run": {section: {key: value} for section, key, value in keys if value is not None}}
    tree |= {key: list(names) for key, names in (("suites", suites), ("models", models)) if names}
    if iterations is not None:
        rounds = min(ENOUGH_ROUNDS, iterations)
        # So many steps, however long they take; only the checkpoint suite has blocks in which a save ends.
        tree["measure"] = {"rounds": rounds, "block_steps": math.ceil(iterations / rounds), "block_seconds": 1e-9}
    return tree


if __name__ == "__main__":
    main()
