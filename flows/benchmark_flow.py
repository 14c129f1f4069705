"""Measure throughput and scaling, with intervals, and leave a card that tells what was seen.

python flows/benchmark_flow.py run
python flows/benchmark_flow.py --config-value set "models=[gpt2-124m] run.cluster.nodes=4" run
"""

import importlib.util
import sys
from pathlib import Path

if missing := [name for name in ("metaflow", "convoy") if importlib.util.find_spec(name) is None]:
    how = "in a clone run `make train`, then `. .venv/bin/activate`; elsewhere `pip install metaflow-convoy`"
    print(f"convoy: {sys.executable} has no {' and no '.join(missing)}: {how}", file=sys.stderr)
    sys.exit(2)

from metaflow import Config, FlowSpec, Parameter, card, convoy_gang, current, step

from convoy.launch.benchmark import steps
from convoy.launch.benchmark.flow import convoy_benchmark

DEFAULTS = Path(__file__).resolve().parent.parent / "configs" / "bench" / "default.yaml"


@convoy_benchmark
class BenchmarkFlow(FlowSpec):
    bench_config = Config(
        "bench", default=str(DEFAULTS), parser="convoy.launch.parse.parse_bench", help="What is measured, as YAML."
    )
    overrides = Config(
        "set", default_value="", parser="convoy.launch.parse.parse_bench_overrides", help="key=value words laid on it."
    )
    dry_run = Parameter("dry-run", type=bool, is_flag=True, default=False, help="Show what would run, start nothing.")

    @step
    def start(self):
        """Settle what is to be measured, once: later steps and attempts read it from here."""
        settled = steps.settle(self.bench_config, self.overrides, current)
        self.config, self.shares, self.name_of_results, self.command = settled
        self.next(self.prepare_data)

    @step
    def prepare_data(self):
        """Token shards, before any expensive machine is up."""
        steps.prepare_data(self.shares)
        self.next(self.spread, foreach="shares")

    @step
    def spread(self):
        """What this branch runs: on one host all gangs, one after the other; else one of them."""
        self.share = self.input
        self.nodes = self.share["nodes"]
        self.next(self.measure, num_parallel=self.nodes)

    @card(type="convoy_card", id="live", refresh_interval=0)
    @convoy_gang
    @step
    def measure(self):
        """The gangs: one task per node."""
        self.times = steps.measure(self.share, self.name_of_results, getattr(self, "command", ""), current)
        self.next(self.gather)

    @step
    def gather(self, inputs):
        """Node 0 tells for all nodes."""
        first = next(iter(inputs))
        self.config, self.shares, self.times = first.config, first.shares, first.times
        self.name_of_results = first.name_of_results
        self.next(self.report)

    @card(type="convoy_card", id="benchmark", refresh_interval=0)
    @step
    def report(self, inputs):
        """What was measured, all of it."""
        first = next(iter(inputs))
        self.config, self.shares = first.config, first.shares
        self.times = [each for branch in inputs for each in branch.times]
        self.results = steps.report(self.shares, first.name_of_results, current)
        self.next(self.end)

    @step
    def end(self):
        """The run's data: config, results, times."""
        print(steps.summary(self.results, self.times))


if __name__ == "__main__":
    BenchmarkFlow()
