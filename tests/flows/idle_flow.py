"""A flow whose gang's tasks are there, and no agent: as where machines are asked for and never come.

With the variable IDLE_AFTER_A_GANG the first attempt has a gang that finishes, and fails after it.
"""

import os
import time

from metaflow import FlowSpec, current, parallel, step


class IdleFlow(FlowSpec):
    @step
    def start(self):
        self.next(self.wait, num_parallel=2)

    @parallel
    @step
    def wait(self):
        index, attempt = current.parallel.node_index, current.retry_count
        if "IDLE_AFTER_A_GANG" in os.environ and attempt == 0:
            if index == 0:
                finish_a_gang()
            raise RuntimeError("after the gang")
        print(f"node {index} waits in attempt {attempt}", flush=True)
        time.sleep(600)
        self.next(self.join)

    @step
    def join(self, inputs):
        self.next(self.end)

    @step
    def end(self):
        pass


def finish_a_gang():
    from convoy.config.loader import default_root
    from convoy.job.events.log import EventWriter
    from convoy.job.events.registry import GenerationEnded, GenerationStarted
    from convoy.job.generations import form_generation
    from convoy.job.record import job_store
    from convoy.launch.gang.node import formation_name

    store, size = job_store(default_root(), "lonely"), {"nodes": 2, "world_size": 2}
    made = form_generation(
        store, formation=formation_name(current, 1), **size, config_hash="", rendezvous="127.0.0.1:1"
    )
    log = EventWriter(store, made.generation, 0, None)
    log.append(GenerationStarted(run=f"IdleFlow/{current.run_id}"))
    log.append(GenerationEnded(outcome="finished", step=20))
    log.close()


if __name__ == "__main__":
    IdleFlow()
