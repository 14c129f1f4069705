"""The real training code on tensors without data, in a process group that only pretends: a truth that is not ours.

Nothing is computed and nothing is sent, so that a model of any size and any number of ranks take a few seconds. torch's
`FSDPMemTracker`, or for DDP `MemTracker`, weighs every tensor of a step as it comes and goes; and each collective is
noted as it is called.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import _create_work_from_future, _resolve_process_group
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from convoy.checkpoint.save.queue import StatusCounts
from convoy.config.parallel import ParallelConfig
from convoy.config.run import RunConfig
from convoy.config.train import OptimizerConfig
from convoy.model.build import build_model
from convoy.model.init import initialise_weights
from convoy.parallel.fsdp import DTYPES, parallelize
from convoy.parallel.mesh import build_mesh
from convoy.parallel.pipeline import Pipeline
from convoy.planner.workload import Machine, Workload
from convoy.training.batch import Batch
from convoy.training.engines.convoy import ConvoyEngine
from convoy.training.engines.ddp import DdpEngine
from convoy.training.engines.engine import Engine
from convoy.training.optimizer import build_optimizer
from convoy.training.step import StepAgreement, Stepper


class Call(NamedTuple):
    """One kind of collective."""

    kind: str
    ranks: int
    bytes: int
    """Of the whole tensor: what a gather gives, what a reduction takes."""


def tracked(workload: Workload, optimizer: OptimizerConfig | None = None, rank: int = 0) -> dict[str, int]:
    """Bytes of each kind at the peak of a step, by the tracker's names, and their `Total`."""
    with stepping(workload, optimizer or OptimizerConfig(), rank) as (step, model, adamw):
        for module in model.modules():
            if isinstance(module, nn.RMSNorm):
                module.forward = partial(_rms_norm, module)  # type: ignore[method-assign]
        step(lambda: None)  # what DTensor works out once, and the moments, would else be billed to the step
        tracker = FSDPMemTracker(model, adamw) if isinstance(model, FSDPModule) else MemTracker()
        if not isinstance(tracker, FSDPMemTracker):
            tracker.track_external(model, adamw)
        with tracker:
            step(tracker.reset_mod_stats)
        peak: dict[Any, dict[Any, int]] = tracker.get_tracker_snapshot("peak")
    (on_device,) = [snapshot for device, snapshot in peak.items() if device.type == "cpu"]
    return {getattr(kind, "value", str(kind)): size for kind, size in on_device.items()}


def counted(workload: Workload, rank: int = 0) -> Counter[Call]:
    """How often a step calls each collective among more than one rank."""
    with stepping(workload, OptimizerConfig(), rank) as (step, _, _):
        step(lambda: None)  # after which DDP arranges its buckets anew
        with _Noting() as noting:
            step(lambda: None)
    calls: Counter[Call] = noting.calls
    return calls


def counted_by_rank(rank: int, store: str, workload: Workload) -> Counter[Call]:
    """As `counted`, in a real group of processes: stages of a pipeline tell each other of shapes, and take no pretence.
    store: a file that none of them has made yet."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.FileStore(store, workload.ranks), rank=rank, world_size=workload.ranks)
    mesh = build_mesh(workload.parallel, "cpu", workload.ranks, workload.machine.ranks)
    if workload.parallel.uses_ddp:
        step = _step(_ddp_engine(workload, OptimizerConfig()), workload)
    else:
        model, fsdp = _spread(workload, mesh)
        model.to_empty(device="cpu")
        initialise_weights(cast(Any, model), seed=0)
        step = _step(_fsdp_engine(model, fsdp, build_optimizer(model, OptimizerConfig()), workload, mesh), workload)
    step(lambda: None)  # the first one also exchanges shapes
    with _Noting() as noting:
        step(lambda: None)
    calls: Counter[Call] = noting.calls
    return calls


@contextmanager
def stepping(workload: Workload, optimizer: OptimizerConfig, rank: int) -> Iterator[tuple[Any, nn.Module, Any]]:
    """A function that makes a step, calling what it is given after each pass; the model; and its optimizer."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=workload.ranks)
    try:
        if workload.parallel.uses_ddp:
            with FakeTensorMode(), _ScalarsOfDdp():  # type: ignore[no-untyped-call]
                ddp = _ddp_engine_without_data(workload, optimizer)
                yield _step(ddp, workload), ddp.module, ddp.optimizer
            return
        mesh = build_mesh(workload.parallel, "cpu", workload.ranks, workload.machine.ranks)
        model, fsdp = _spread(workload, mesh)
        with FakeTensorMode(), _Scalars():  # type: ignore[no-untyped-call]
            model._apply(_without_data)  # type: ignore[no-untyped-call]
            adamw = build_optimizer(model, optimizer)
            yield _step(_fsdp_engine(model, fsdp, adamw, workload, mesh), workload), model, adamw
    finally:
        dist.destroy_process_group()


def _spread(workload: Workload, mesh: Any) -> tuple[nn.Module, FSDPModule]:
    """The model on the meta device, not compiled."""
    train = workload.train.model_copy(update={"compile": False})
    model = build_model(workload.model, train.loss_chunk_tokens, fused_attention=train.attention == "fused")
    with as_on(workload.machine):
        fsdp = parallelize(model, mesh, workload.parallel, train)
    for module in model.modules():
        if isinstance(module, FSDPModule) and workload.machine.gpu != "cpu":  # NCCL reduces, as FSDP2 has it by default
            module.set_custom_reduce_scatter(cast(Any, DefaultReduceScatter()))
    return model, fsdp


def _ddp_engine(workload: Workload, optimizer: OptimizerConfig) -> DdpEngine:
    """Not compiled."""
    changed = {name: getattr(workload, name) for name in ("model", "parallel")} | {"optimizer": optimizer}
    changed["train"] = workload.train.model_copy(update={"compile": False})
    ranks: Any = SimpleNamespace(device=torch.device("cpu"), training_group=None)
    with as_on(workload.machine):
        return DdpEngine(RunConfig().model_copy(update=changed), ranks)


def _ddp_engine_without_data(workload: Workload, optimizer: OptimizerConfig) -> DdpEngine:
    """In a FakeTensorMode, which takes no model from the meta device to another: it is built where it trains. Ranks
    that are not there have no weights to compare and to send."""
    ddp = "torch.nn.parallel.distributed"
    with ExitStack() as patched:
        for name in ("_verify_param_shape_across_processes", "_sync_module_states"):
            patched.enter_context(patch(f"{ddp}.{name}"))
        patched.enter_context(patch(f"{ddp}.DistributedDataParallel._check_comm_hook"))  # wants NCCL for bf16
        patched.enter_context(patch("convoy.training.build.build_model", partial(build_model, device="cpu")))
        patched.enter_context(patch("convoy.training.build.initialise_weights"))
        patched.enter_context(patch.object(nn.Module, "_apply", lambda module, *_, **__: module))
        return _ddp_engine(workload, optimizer)


@contextmanager
def as_on(machine: Machine) -> Iterator[None]:
    """Devices are CPUs; units, and what ranks send, are those of the machine's ranks."""
    on_cpu = machine.gpu == "cpu"
    shards_as_one_fsdp_unit, adds_in_rank_order = (
        ParallelConfig.shards_as_one_fsdp_unit,
        ParallelConfig.adds_in_rank_order,
    )
    with (
        patch.object(
            ParallelConfig, "shards_as_one_fsdp_unit", lambda own, **_: shards_as_one_fsdp_unit(own, on_cpu=on_cpu)
        ),
        patch.object(
            ParallelConfig, "adds_in_rank_order", lambda own, *of, **_: adds_in_rank_order(own, *of, on_cpu=on_cpu)
        ),
    ):
        yield


def _rms_norm(module: nn.RMSNorm, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = _RmsNorm.apply(x, module.weight)  # type: ignore[no-untyped-call]
    return result


class _RmsNorm(torch.autograd.Function):
    """On GPUs it is one kernel, that keeps its input and a number for each token. On CPUs it is many operators, that
    keep copies in fp32."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight, torch.empty(x.shape[:-1]))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


def _without_data(parameter: torch.Tensor) -> torch.Tensor:
    """As `to_empty`, which a FakeTensorMode does not allow for real tensors of the meta device."""
    assert isinstance(parameter, DTensor)
    local = torch.empty(parameter._local_tensor.shape)
    mesh, placed = parameter.device_mesh, parameter.placements
    return DTensor.from_local(local, mesh, placed, run_check=False, shape=parameter.shape, stride=parameter.stride())


def _fsdp_engine(
    model: nn.Module, fsdp: FSDPModule, optimizer: torch.optim.Optimizer, workload: Workload, mesh: Any
) -> ConvoyEngine:
    train, parallel = workload.train, workload.parallel
    pipeline = Pipeline(model, mesh["pipeline"], DTYPES[train.param_dtype]) if parallel.pipeline > 1 else None
    return ConvoyEngine(fsdp, optimizer, train, parallel, pipeline=pipeline)


def _step(engine: Engine, workload: Workload) -> Callable[[Callable[[], None]], None]:
    """As `stepping` gives it."""
    seed, ranks_per_sample, clock = workload.train.seed, workload.parallel.ranks_per_sample, _Clock()
    stepper = Stepper(engine, seed, ranks_per_sample, cast(Any, _Alone()), cast(Any, clock))

    def step(passed: Callable[[], None]) -> None:
        clock.passed = passed
        shape = workload.sequences_per_pass, workload.sequence_length
        batches = [_batch(i, shape) for i in range(workload.passes)]
        stepper(batches, 0, 1e-4, None, StatusCounts())

    return step


def _batch(index: int, shape: tuple[int, int]) -> Batch:
    tokens = torch.zeros(shape, dtype=torch.int64)
    return Batch(index, (tokens, torch.zeros_like(tokens), None), tokens.numel(), tokens.device)


class _Alone:
    """Where ranks would exchange what they know."""

    def begin(self, *_: Any) -> None:
        """Nobody listens."""

    def finish(self) -> StepAgreement:
        return StepAgreement(1, None, StatusCounts())


class _Clock:
    """Tells when a pass is over: the tracker wants to see each pass as the first one."""

    passed: Callable[[], None] = staticmethod(lambda: None)

    def end_phase(self, phase: str) -> None:
        if phase == "backward":
            self.passed()


class _Scalars(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives a number where one is read from a tensor without data: a loss that is finite, a norm that is clipped."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(t is DTensor for t in types):
            return NotImplemented
        if func is torch.ops.aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            return 2.0 if args[0].is_floating_point() else 2
        return func(*args, **(kwargs or {}))


class _ScalarsOfDdp(_Scalars):  # type: ignore[no-untyped-call]
    """And what DDP asks for: the numbers by which it arranges its buckets anew have data, and a sum has a result."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        has_data = bool(tensors) and not any(isinstance(tensor, FakeTensor) for tensor in tensors)
        if has_data or (func is torch.ops.aten.empty.memory_format and (kwargs or {}).get("dtype") is torch.int32):
            with unset_fake_temporarily():  # type: ignore[no-untyped-call]
                return func(*args, **(kwargs or {}))
        if func is torch.ops.c10d.allreduce_.default:
            future: Any = torch.futures.Future()
            future.set_result(args[0])
            return args[0], _create_work_from_future(future).boxed()
        return super().__torch_dispatch__(func, types, args, kwargs)


KINDS = {"allgather": "all_gather", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter"}
KINDS |= {"alltoall": "reduce_scatter"}  # by which ranks on CPUs reduce (`parallel/gloo.py`)
KINDS |= {"allreduce": "all_reduce", "all_reduce": "all_reduce", "send": "send"}


class _Noting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes collectives, by the whole tensor that they gather or reduce."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[Call] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(t is DTensor for t in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        if func.namespace in ("c10d", "_c10d_functional"):
            name = func._schema.name.partition("::")[2].strip("_")
            kind = next((kind for prefix, kind in KINDS.items() if name.startswith(prefix)), None)
            if kind is not None:
                self._note(kind, args, result)
        return result

    def _note(self, kind: str, args: Any, result: Any) -> None:
        ranks = _group(args).size()
        sizes = [tensor.nbytes for tensor in tree_leaves((args, result)) if isinstance(tensor, torch.Tensor)]
        if ranks > 1:
            self.calls[Call(kind, ranks, max(sizes))] += 1


def _group(args: Any) -> dist.ProcessGroup:
    """That a collective is among: an object, or the name of one."""
    for arg in args:
        if isinstance(arg, torch.ScriptObject) and "ProcessGroup" in str(arg._type()):
            return dist.ProcessGroup.unbox(arg)
    name: Any = next(arg for arg in reversed(args) if isinstance(arg, str))
    return _resolve_process_group(name)
