"""Run suites of benchmarks on this host, without Metaflow: a JSON file for each case.

    python benchmarks/run_benchmarks.py --output-dir results/
    python benchmarks/run_benchmarks.py --model gpt2-124m --nodes 2 --batch-size 8 --sequence-length 512 \\
        --iterations 100 --output-dir results/

`--batch-size` counts the sequences of a step over all ranks (the global batch), `--batch-size-per-gpu` those of one
rank. A model without room on this host, such as `--model gpt-7b` on most, is not measured: the command says what it
needs and how to measure it on a cluster, and if no other model is named, it measures the throughput suite of the
default benchmark instead, at that benchmark's own sizes. What is not given is as in `configs/bench/default.yaml`, or in
the file of `--config`. Cases of a group take turns in one gang;
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
from convoy.config.benchmark import BenchConfig, read_bench, resolve_bench
from convoy.config.errors import ConfigError
from convoy.config.loader import configs_folder, merge_config, read_overrides
from convoy.display.formatting import plural

ENOUGH_ROUNDS = 20

MEANINGS = "\n".join(f"  {suite.name:12}{suite.meaning}" for suite in SUITES)


@click.command(epilog=f"\b\nSuites:\n{MEANINGS}")
@click.option("--output-dir", type=click.Path(file_okay=False, path_type=Path), required=True, help="For the results.")
@click.option("--config", "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="As YAML.")
@click.option("--suite", "suites", multiple=True, help="As listed below; may be given again.")
@click.option("--model", "models", multiple=True, help="A preset of configs/models/; may be given again.")
@click.option("--nodes", type=click.IntRange(min=1), help="Processes that stand for nodes, on this host.")
@click.option("--batch-size", type=click.IntRange(min=1), help="Sequences of a step over all ranks: the global batch.")
@click.option("--batch-size-per-gpu", type=click.IntRange(min=1), help="Instead: sequences of a step of one rank.")
@click.option("--sequence-length", type=click.IntRange(min=1), help="Tokens of a sequence.")
@click.option("--iterations", type=click.IntRange(min=6), help="Measured steps of each case.")
@click.option("--set", "words", default="", help="key=value words laid on all this, e.g. run.train.compile=true.")
def main(
    output_dir: Path,
    file: Path | None,
    words: str,
    batch_size: int | None,
    batch_size_per_gpu: int | None,
    **options: Any,
) -> None:
    """Measure, and write what was measured."""
    from convoy.launch.benchmark.groups import run_here
    from convoy.launch.benchmark.split import world_of

    try:
        if batch_size is not None and batch_size_per_gpu is not None:
            raise ConfigError("--batch-size and --batch-size-per-gpu: give one of them")
        base = read_bench((file or configs_folder() / "bench" / "default.yaml").read_text())

        def resolved(batch: int | None) -> BenchConfig:
            return resolve_bench(merge_config(base, configuration(batch_size=batch, **options)), read_overrides(words))

        config = resolved(batch_size)
        if batch_size_per_gpu is not None:
            config = resolved(batch_size_per_gpu * world_of(config).size)
        command = shlex.join(["python", "benchmarks/run_benchmarks.py", *sys.argv[1:]])
        if config.run.get("cluster", {}).get("backend", "local") == "local":
            config = with_room(config, output_dir, words)
            say(meaning_of_sizes(config))
        ran = run_here(config, output_dir, say, command)
    except ConfigError as error:
        click.echo(f"run_benchmarks: {error}", err=True)
        sys.exit(2)
    failed = [each.group.name for each in ran if each.failure]
    click.echo(f"{sum(len(each.cases) for each in ran)} cases are in {output_dir}")
    if failed:
        click.echo(f"failed: {', '.join(failed)}", err=True)
        sys.exit(1)


def say(line: str) -> None:
    """Print it to standard error."""
    click.echo(line, err=True)


def meaning_of_sizes(config: BenchConfig) -> str:
    """What the numbers of the command line mean for a step and for each case."""
    from convoy.launch.benchmark.split import run_on_host, world_of

    run, measure, ranks = run_on_host(config, config.models[0]), config.measure, world_of(config).size
    batch, length, nodes = run.train.global_batch, run.data.sequence_length, run.cluster.nodes
    return (
        f"a step: {batch} sequences of {length:,} tokens over {plural(ranks, 'rank')} of {plural(nodes, 'node')}, "
        f"{batch / ranks:g} per rank (--batch-size is the global batch, --batch-size-per-gpu one rank's); each case is "
        f"measured in {measure.rounds} blocks of {measure.block_steps} steps or more"
    )


def with_room(config: BenchConfig, output_dir: Path, words: str) -> BenchConfig:
    """The benchmark of the models that have room here, or else of what the default benchmark measures. Of the others it
    says what they need, and writes refused cases. words: of `--set`."""
    from convoy.benchmark.results.files import write_case
    from convoy.launch.benchmark.without_room import cluster_lines, refused_cases, split_by_room

    here, lacking = split_by_room(config)
    for model, reason in lacking.items():
        say(f"not measured here: {reason}")
        for line in cluster_lines(config, model, words):
            say(line)
        for case in refused_cases(config, model, reason):
            write_case(output_dir, case)
    if here is not None:
        return here
    base = read_bench((configs_folder() / "bench" / "default.yaml").read_text())
    instead = resolve_bench(base, {"suites": ["throughput"]})
    say(f"measured instead: {', '.join(instead.models)}, the throughput suite of configs/bench/default.yaml as it is")
    return instead


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
