"""A flow whose first node has its machine, and for a while no agent: before the gang, and after it."""

import time

from metaflow import FlowSpec, current, parallel, step

SECONDS = 11.0
"""Of each: longer than two looks of `convoy run` take."""


def store():
    from convoy.config.load import default_root
    from convoy.job.record import job_store

    return job_store(default_root(), "busy")


class BusyFlow(FlowSpec):
    @step
    def start(self):
        self.next(self.work, num_parallel=2)

    @parallel
    @step
    def work(self):
        if current.parallel.node_index == 0:
            self.prepare()
            self.end_the_gang()
            time.sleep(SECONDS)  # the step's own code goes on
        else:
            time.sleep(3 * SECONDS)
        self.next(self.join)

    def prepare(self):
        from convoy.gang.leader import marked

        with marked(store(), "busy", f"BusyFlow/{current.run_id}"):
            time.sleep(SECONDS)

    def end_the_gang(self):
        from convoy.events.log import EventWriter
        from convoy.events.types import GenerationEnded, GenerationStarted
        from convoy.job.generations import form_generation
        from convoy.launch.node import formation

        named, size = formation(current, 1), {"nodes": 2, "world_size": 2}
        made = form_generation(store(), formation=named, **size, config_hash="", rendezvous="127.0.0.1:1")
        log = EventWriter(store(), made.generation, 0, None)
        log.append(GenerationStarted(run=f"BusyFlow/{current.run_id}"))
        log.append(GenerationEnded(outcome="finished", step=20))
        log.close()

    @step
    def join(self, inputs):
        self.next(self.end)

    @step
    def end(self):
        pass


if __name__ == "__main__":
    BusyFlow()
