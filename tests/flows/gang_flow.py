"""Flows of a user's own with a gang: of a script, or of Convoy's training without the rest of its flow."""

import json
import os

from metaflow import Config, FlowSpec, Parameter, card, convoy_gang, current, parallel, step

from convoy.launch.flow import convoy_machines

NPROC = json.loads(os.environ.get("GANG_NPROC", "1"))
BESIDE = parallel if "GANG_BESIDE_PARALLEL" in os.environ else lambda function: function


class GangFlow(FlowSpec):
    machines = Config("machines", default_value="{}", parser="convoy.launch.parse.parse_run")
    nodes = Parameter("nodes", type=int, default=2)
    entrypoint = Parameter("entrypoint", default="ddp_script.py")
    arguments = Parameter("arguments", default="[]", help="Of the script, as JSON.")
    training = Parameter("training", default="", help="In place of a script: a configuration, as JSON.")
    again = Parameter("again", default="", help="Another script, when that is done.")
    job_option = Parameter("job", default="")

    @step
    def start(self):
        self.next(self.train, num_parallel=self.nodes)

    @convoy_machines("machines")
    @card(type="convoy_card", id="live", refresh_interval=0)
    @convoy_gang(nproc_per_node=NPROC)
    @BESIDE
    @step
    def train(self):
        job = self.job_option or None
        if self.training:
            self.job = current.convoy.train(json.loads(self.training), job=job)
        else:
            self.job = current.convoy.run(self.entrypoint, json.loads(self.arguments), job=job)
        if self.again:
            self.job += f" {current.convoy.run(self.again)}"
        self.rank = current.parallel.node_index
        self.next(self.join)

    @step
    def join(self, inputs):
        self.jobs, self.ranks = [i.job for i in inputs], [i.rank for i in inputs]
        self.next(self.end)

    @step
    def end(self):
        pass


if __name__ == "__main__":
    GangFlow()
