"""Cases of a benchmark that was never run, whose steps took what known constants say."""

from typing import Any

from convoy.benchmark.planner_runs import workload_of
from convoy.benchmark.results.case import Case, CasePrediction
from convoy.catalog.measured_machine import MeasuredMachine
from convoy.config.run import RunConfig
from convoy.planner.step.calibration import Calibration
from convoy.planner.step.step_time import step_time
from tests.benchmark.cases import HARDWARE, MEASURED, a_case

A100 = "NVIDIA A100-SXM4-40GB"
"""As CUDA reports it, of a p4d."""

SMALL: dict[str, Any] = {"n_layers": 4, "d_model": 192, "n_heads": 3, "vocab_size": 4096}


def a_run(
    truth: Calibration,
    name: str,
    model: dict[str, Any] | None = None,
    cluster: dict[str, Any] | None = None,
    nodes: int = 1,
    ranks_per_node: int = 2,
    machine: MeasuredMachine | None = MEASURED,
    **train: Any,
) -> Case:
    """On this host, or on a p4d, where `machine` is None. Its blocks have noise of 2 %."""
    tree = {
        "model": {**SMALL, "max_sequence_length": 256, **(model or {})},
        "data": {"sequence_length": 256},
        "train": {"global_batch": 4, "micro_batch": 2, "param_dtype": "fp32", **train},
        "cluster": {"nodes": nodes, **(cluster or {})},
    }
    config = RunConfig.model_validate(tree)
    on_gpus = machine is not None and machine.kind == "cuda"
    seconds = step_time(workload_of(config, nodes, ranks_per_node, machine, on_gpus=on_gpus), truth).total
    told = CasePrediction(
        calibration="a test", machine=machine, nodes=nodes, ranks_per_node=ranks_per_node, step_seconds=seconds
    )
    device = machine.device if machine else A100
    beside = {
        "device": device,
        "nodes": nodes,
        "ranks": nodes * ranks_per_node,
        "instance_type": config.cluster.instance_type,
    }
    return a_case(
        name,
        seconds,
        config=config.model_dump(mode="json"),
        predicted=told,
        hardware=HARDWARE.model_copy(update=beside),
        tokens_per_step=config.train.global_batch * 256,
    )
