"""Which of bf16 and fp32 this machine multiplies faster: `python -m convoy.training.measure.faster_dtype`.

It reads the configuration and the number of ranks from its standard input, and prints a ParamDtypeChoice, both as JSON.
A CPU without AMX multiplies bf16 at about half the rate of fp32, and one that has it faster than fp32, so that neither
is the right default for both.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch

from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig
from convoy.config.train import ParamDtype
from convoy.job.events.types import ParamDtypeChoice
from convoy.model.families import block_of
from convoy.parallel.fsdp import DTYPES
from convoy.training.measure.machine import device_name, random
from convoy.training.measure.machine_probe import mlp_flops, mlp_products, pass_size

CUSTOM_WIDTH = 1024

ROUNDS = 7
"""Each type has a turn in each; at least so many,"""

SECONDS = 0.4
"""and as many as fill so much time."""


def choose(config: RunConfig, world_size: int) -> ParamDtypeChoice:
    """bf16 on a GPU; on a CPU the type whose products of the job's MLP have the smaller median time."""
    if torch.cuda.device_count():
        return ParamDtypeChoice(param_dtype="bf16", device=device_name(torch.device("cuda", 0)))
    cpu = torch.device("cpu")
    tokens, (width, inner) = pass_size(config, world_size // config.parallel.shared_by)[1], _layer(config)
    shapes = ((tokens, width), (tokens, inner), (inner, width))
    dtypes: tuple[ParamDtype, ...] = ("fp32", "bf16")
    products = {dtype: mlp_products(*(random(cpu, DTYPES[dtype], *shape) for shape in shapes)) for dtype in dtypes}
    seconds = _interleaved(products)
    flops = {dtype: mlp_flops(tokens, width, inner) / seconds[dtype] for dtype in dtypes}
    return ParamDtypeChoice(
        param_dtype=max(dtypes, key=lambda dtype: flops[dtype]), device=device_name(cpu), flops=flops
    )


def _layer(config: RunConfig) -> tuple[int, int]:
    """Inputs and outputs of the MLP's first product on one rank; of a model of the user's own, about which nothing is
    known, CUSTOM_WIDTH for both."""
    if not isinstance(config.model, TransformerConfig):
        return CUSTOM_WIDTH, CUSTOM_WIDTH
    return config.model.d_model, block_of(config.model).inner_width // config.parallel.tensor


def _interleaved(calls: dict[ParamDtype, Callable[[], None]]) -> dict[ParamDtype, float]:
    """Median seconds of each call, taking turns, after one call of each that is not counted."""
    for call in calls.values():
        call()
    times: dict[ParamDtype, list[float]] = {dtype: [] for dtype in calls}
    ends = time.perf_counter() + SECONDS
    while len(times["fp32"]) < ROUNDS or time.perf_counter() < ends:
        for dtype, call in calls.items():
            began = time.perf_counter()
            call()
            times[dtype].append(time.perf_counter() - began)
    return {dtype: statistics.median(each) for dtype, each in times.items()}


if __name__ == "__main__":
    request = json.load(sys.stdin)
    print(choose(RunConfig.model_validate(request["config"]), request["world_size"]).model_dump_json())
