"""Runs one of the scripts in this folder as a gang of two ranks: `python scripts_flow.py run --script train_ddp.py`.

On a cluster, Metaflow also needs `--package-suffixes .py,.json` before `run`, for DeepSpeed's configuration.
"""

from pathlib import Path

from metaflow import FlowSpec, Parameter, card, convoy_gang, current, retry, step

HERE = Path(__file__).parent

ARGUMENTS = {
    "train_deepspeed": ["--deepspeed", "--deepspeed_config", HERE / "deepspeed.json"],
    "train_lightning": ["--num_nodes", 2],
}
"""Of scripts that need some. `_plain` at the end of a name makes no difference."""


class ScriptsFlow(FlowSpec):
    script = Parameter("script", default="train_ddp.py", help="a file in this folder")

    @step
    def start(self):
        self.next(self.train, num_parallel=2)

    @card(type="convoy_card", id="live", refresh_interval=0)
    @retry(times=2)
    @convoy_gang(nproc_per_node=1)
    @step
    def train(self):
        name = self.script.removesuffix(".py").removesuffix("_plain")
        current.convoy.run(self.script, ARGUMENTS.get(name, []))
        self.next(self.join)

    @step
    def join(self, inputs):
        self.next(self.end)

    @step
    def end(self):
        pass


if __name__ == "__main__":
    ScriptsFlow()
