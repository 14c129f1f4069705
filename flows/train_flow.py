"""Train a language model with FSDP over several machines.

python flows/train_flow.py run
python flows/train_flow.py --config run configs/train/gpt-7b-p4d.yaml --config-value set "train.steps=200" run
"""

import importlib.util
import sys
from pathlib import Path

if missing := [name for name in ("metaflow", "convoy") if importlib.util.find_spec(name) is None]:
    how = "in a clone run `make train`, then `. .venv/bin/activate`; elsewhere `pip install metaflow-convoy`"
    print(f"convoy: {sys.executable} has no {' and no '.join(missing)}: {how}", file=sys.stderr)
    sys.exit(2)

from metaflow import Config, FlowSpec, Parameter, card, convoy_gang, current, step

from convoy.launch import steps
from convoy.launch.flow import convoy_flow

DEFAULTS = Path(__file__).resolve().parent.parent / "configs" / "train" / "default.yaml"


@convoy_flow
class TrainFlow(FlowSpec):
    run_config = Config("run", default=str(DEFAULTS), parser="convoy.launch.parse.parse_run", help="The job, as YAML.")
    overrides = Config(
        "set", default_value="", parser="convoy.launch.parse.parse_overrides", help="key=value words laid on it."
    )
    job_option = Parameter("job", type=str, default="", help="Continue this job. Default: a new one, named by the run.")
    dry_run = Parameter("dry-run", type=bool, is_flag=True, default=False, help="Show what would run, start nothing.")

    @step
    def start(self):
        """Settle what is to run, once: later steps and attempts read it from here."""
        self.config, self.job, self.plan = steps.settle(self.run_config, self.overrides, self.job_option, current)
        self.next(self.prepare_data)

    @step
    def prepare_data(self):
        """Token shards, before any expensive machine is up."""
        self.data = steps.prepare_data(self.config, self.job)
        self.nodes = self.config["cluster"]["nodes"]
        self.next(self.train, num_parallel=self.nodes)

    @card(type="convoy_card", id="live", refresh_interval=0)
    @convoy_gang
    @step
    def train(self):
        """The gang: one task per node."""
        plan = getattr(self, "plan", None)  # of a run to resume that an older version began there is none
        current.convoy.train(self.config, job=self.job, data=self.data, plan=plan)
        self.next(self.join)

    @card(type="convoy_card", id="report", refresh_interval=0)
    @step
    def join(self, inputs):
        """What came of it."""
        first = next(iter(inputs))
        self.job = first.job
        result = steps.report(first.config, self.job, current, getattr(first, "plan", None))
        self.config = result.config
        self.checkpoint_uri, self.model_uri = result.checkpoint_uri, result.model_uri
        self.metrics, self.incidents, self.plan = result.metrics, result.incidents, result.plan
        self.next(self.end)

    @step
    def end(self):
        """The run's data: job, config, plan, checkpoint_uri, model_uri, metrics, incidents."""
        print(steps.summary(self.job, self.metrics, self.checkpoint_uri, self.model_uri))


if __name__ == "__main__":
    TrainFlow()
