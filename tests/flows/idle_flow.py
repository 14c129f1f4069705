"""A flow whose gang's tasks are there, and no agent: as where machines are asked for and never come."""

import time

from metaflow import FlowSpec, current, parallel, step


class IdleFlow(FlowSpec):
    @step
    def start(self):
        self.next(self.wait, num_parallel=2)

    @parallel
    @step
    def wait(self):
        print("waits", current.parallel.node_index, flush=True)
        time.sleep(600)
        self.next(self.join)

    @step
    def join(self, inputs):
        self.next(self.end)

    @step
    def end(self):
        pass


if __name__ == "__main__":
    IdleFlow()
