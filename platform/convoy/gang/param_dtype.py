"""Node 0 settles `train.param_dtype: auto` before it forms a job's first generation.

The agent imports no torch, so a separate process measures (`training/measure/machine_probe.py`). The generation's
recorded configuration holds the result, from which the other nodes and every later generation of the job take it.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace

from convoy.config.errors import ConfigError
from convoy.config.run import RunConfig, with_param_dtype
from convoy.gang.async_call import say
from convoy.gang.task import Node, Task
from convoy.gang.workers.worker import shared_environment
from convoy.job.events.types import ParamDtypeChoice
from convoy.job.record import with_recorded_dtype
from convoy.storage import Store

MEASURE = "convoy.training.measure.machine_probe"

SECONDS = 120.0
"""For the measurement, most of which is the import of torch; on an idle machine it takes about three seconds."""


def with_settled_dtype(task: Task, node: Node, store: Store) -> Task:
    """The task with a settled parameter type. Raises ConfigError if it cannot be measured."""
    if task.script is not None or task.config.train.param_dtype != "auto":
        return task
    recorded = with_recorded_dtype(task.config, store)
    if recorded.train.param_dtype != "auto":
        return replace(task, config=recorded)
    choice = _measure(task.config, node)
    say(f"train.param_dtype = auto: this job trains in {choice.in_words()}")
    return replace(task, config=with_param_dtype(task.config, choice.param_dtype), dtype_choice=choice)


def _measure(config: RunConfig, node: Node) -> ParamDtypeChoice:
    request = json.dumps({"config": config.model_dump(mode="json"), "world_size": node.world_size})
    environment = {**os.environ, **shared_environment(node.threads_per_rank(config))}
    try:
        done = subprocess.run(
            [sys.executable, "-m", MEASURE],
            input=request, capture_output=True, text=True, timeout=SECONDS, env=environment,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise _failed(f"no result within {SECONDS:g} s") from None
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise _failed(last[0])
    return ParamDtypeChoice.model_validate_json(done.stdout.splitlines()[-1])


def _failed(why: str) -> ConfigError:
    return ConfigError(f"train.param_dtype = auto: the measurement failed ({why}); set bf16 or fp32")
