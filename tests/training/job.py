"""A real job on tiny synthetic data, whose ranks are forks of the test: everything but the interpreter's start."""

import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from convoy.checkpoint.commits import read_commit
from convoy.checkpoint.format import Commit
from convoy.checkpoint.restore import load
from convoy.checkpoint.state.values import dtype_of
from convoy.config.run import RunConfig
from convoy.data.job_data import prepare_job_data
from convoy.gang.task import Assignment, RankPosition
from convoy.gang.workers.board import Board
from convoy.job.events.log import read_events
from convoy.job.events.registry import Event, StepDone
from convoy.job.generations import form_generation
from convoy.job.lineage import CommitRef, Generation, counted_commits, newest_commit, read_history
from convoy.job.record import ensure_record, job_store, keep_config, tier_stores, tier_uris
from convoy.storage import open_store
from convoy.training.data import DATA_STATE_KEY
from convoy.training.loop import TrainingFailedError
from convoy.training.process_groups import is_lost_peer
from convoy.training.rank import run_rank
from tests.ranks import on_ranks
from tests.training.writers import fork_writers, wait_for_each_save

GPT = {"vocab_size": 257, "n_layers": 2, "d_model": 48, "n_heads": 3, "max_sequence_length": 32, "init_std": 0.1}
LLAMA = GPT | {
    "n_heads": 6,
    "n_kv_heads": 2,
    "d_ff": 70,
    "norm": "rmsnorm",
    "positions": "rotary",
    "mlp": "swiglu",
    "bias": False,
    "tied_embeddings": False,
}
GPT_OF_4 = GPT | {"n_heads": 4}
LLAMA_OF_4 = LLAMA | {"n_heads": 4, "n_kv_heads": 2, "d_ff": 72}
STAGES = LLAMA_OF_4 | {"n_layers": 3}
"""What up to four tensor-parallel ranks can share, and three stages."""

E = TypeVar("E", bound=Event)
Fault = Callable[[int], None]
"""Called on each rank, in its own process, before it begins: spoils something there."""

Outcome = bool | str
"""Of a rank: whether all agreed to stop early, or the text of the TrainingFailedError, or PEER_LOST."""

PEER_LOST = "peer lost"


def tiny(**sections: Any) -> RunConfig:
    """A configuration of odd sizes that trains in milliseconds, in fp32, and keeps every checkpoint.

    sections replace keys, a custom model all.
    """
    base: dict[str, dict[str, Any]] = {
        "model": dict(GPT),
        "data": {"corpus": {"kind": "synthetic", "tokens": 6000, "vocab_size": 257}, "sequence_length": 16},
        "train": {
            "steps": 20, "global_batch": 8, "micro_batch": 8, "param_dtype": "fp32", "matmul_peak_seconds": 0,
            "loss_chunk_tokens": 50, "seed": 3,
        },
        "optimizer": {"lr": 1e-3},
        "schedule": {"warmup_steps": 3},
        "evaluation": {"every_steps": 1000, "sequences": 5, "sample_tokens": 0},
        "checkpoint": {"every_steps": None, "export_model": False, "retention": {"keep_last": 100}},
    }  # fmt: skip
    for name, keys in sections.items():
        base[name] = keys if "build" in keys else base.get(name, {}) | keys
    return RunConfig.model_validate(base)


@dataclass
class Job:
    """A job under a folder or bucket of the test's own."""

    root: str
    config: RunConfig
    name: str = "job"

    def __post_init__(self) -> None:
        self.store = job_store(self.root, self.name)
        self.data_id, self.fingerprint, _ = prepare_job_data(self.config, open_store(self.root))

    def run(
        self,
        world: int,
        fault: Fault | None = None,
        *,
        may_die: bool = False,
        prompt: bool = True,
        boards: Sequence[Board] | None = None,
        **changed: Any,
    ) -> list[Outcome]:
        """Train a new generation on `world` ranks, each section of `changed` merged into the configuration.

        prompt: each step waits until the save that is being written is over; False: as in earnest. boards: each rank's.
        """
        config = self.changed(**changed)
        return self.on_gang(world, _train_one, fault, prompt, config=config, boards=boards, may_die=may_die)

    def on_gang(
        self,
        world: int,
        function: Callable[..., Any],
        *args: Any,
        config: RunConfig | None = None,
        boards: Sequence[Board] | None = None,
        may_die: bool = False,
    ) -> list[Any]:
        """What `function(rank, assignments, *args)` gives on each rank of a new generation."""
        config = config or self.config
        with socket.create_server(("127.0.0.1", 0)) as listener:
            generation = self.form(config, world, listener.getsockname()[1])
            assignments = [self.assignment(config, generation, rank, world) for rank in range(world)]
            assignments[0] = assignments[0].model_copy(update={"listen_fd": listener.fileno()})
            if boards is not None:
                assignments = [
                    assignment.model_copy(update={"board_path": board.path})
                    for assignment, board in zip(assignments, boards, strict=True)
                ]
            return on_ranks(world, function, assignments, *args, may_die=may_die)

    def copied(self, folder: Path) -> "Job":
        """The job as it stands, in another folder, which is made."""
        shutil.copytree(self.root, folder)
        return Job(str(folder), self.config, self.name)

    def changed(self, **sections: Mapping[str, Any]) -> RunConfig:
        plain = self.config.model_dump(mode="json")
        return RunConfig.model_validate(plain | {name: plain[name] | dict(keys) for name, keys in sections.items()})

    def form(self, config: RunConfig, world: int, port: int) -> Generation:
        ensure_record(self.store, self.name, config, self.fingerprint)
        return form_generation(
            self.store,
            formation=f"test {time.time_ns()}",
            nodes=1,
            world_size=world,
            config_hash=keep_config(self.store, config),
            rendezvous=f"127.0.0.1:{port}",
            others=tier_stores(self.root, self.name, config)[1:],
        )

    def assignment(self, config: RunConfig, generation: Generation, rank: int, world: int) -> Assignment:
        return Assignment(
            config=config,
            job=self.name,
            job_uri=self.store.uri,
            root=self.root,
            data_id=self.data_id,
            fingerprint=self.fingerprint,
            generation=generation.generation,
            parent=generation.parent,
            tiers=tier_uris(self.root, self.name, config),
            place=place(rank, world),
            master_host="127.0.0.1",
            master_port=int(generation.rendezvous.rpartition(":")[2]),
            reason_path="",
            usd_per_hour=36.0,
        )

    def events(self, kind: type[E], generation: int | None = None) -> list[E]:
        """All events of a kind, of one generation or of all, by time."""
        found: Sequence[Event] = read_events(self.store)
        return [e for e in found if isinstance(e, kind) and generation in (None, e.generation)]

    def losses(self, generation: int | None = None) -> list[float]:
        return [e.loss for e in self.events(StepDone, generation)]

    def newest(self) -> CommitRef | None:
        return newest_commit(read_history(self.store))

    def steps_committed(self) -> list[int]:
        """Steps of the commits that count."""
        return [ref.step for ref in counted_commits(read_history(self.store))]

    def commit(self) -> Commit:
        """The newest commit that counts."""
        newest = self.newest()
        assert newest is not None
        return read_commit(self.store, newest)

    def commit_of(self, step: int) -> Commit:
        """The commit of a step."""
        return next(
            read_commit(self.store, ref) for ref in counted_commits(read_history(self.store)) if ref.step == step
        )

    def state(self, commit: Commit | None = None) -> dict[str, Any]:
        """Every tensor of a commit, whole and by name; the newest commit's by default."""
        commit = commit or self.commit()
        tensors: dict[str, Any] = {
            name: torch.empty(info.shape, dtype=dtype_of(info.dtype)) for name, info in commit.tensors.items()
        }
        if commit.fingerprint.endswith("-stream"):
            tensors[DATA_STATE_KEY] = {}
        assert load.restore([self.store], [(commit.ref, [0])], tensors) is not None
        return tensors


def place(rank: int, world: int, nproc_per_node: int | None = None) -> RankPosition:
    """A rank of `world` on this host, one thread each."""
    per_node = nproc_per_node or world
    return RankPosition(
        rank=rank,
        local_rank=rank % per_node,
        node=rank // per_node,
        nodes=world // per_node,
        nproc_per_node=per_node,
        host_rank=rank,
        host_ranks=world,
        threads=1,
    )


def cases(quick: Mapping[str, tuple[Any, ...]], slow: Mapping[str, tuple[Any, ...]]) -> list[Any]:
    """Values for `pytest.mark.parametrize`, by their ids."""
    return [
        pytest.param(*values, id=name, marks=[pytest.mark.slow] if name in slow else [])
        for name, values in {**quick, **slow}.items()
    ]


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names whose values are not the same to the last bit."""
    assert one.keys() == other.keys()
    return [name for name in one if not _same(one[name], other[name])]


def _same(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def _train_one(rank: int, assignments: list[Assignment], fault: Fault | None, prompt: bool) -> Outcome:
    fork_writers()
    if prompt:
        wait_for_each_save()
    if fault is not None:
        fault(rank)
    try:
        return run_rank(assignments[rank], time.perf_counter()) is not None
    except TrainingFailedError as error:
        return str(error)
    except RuntimeError as error:
        if is_lost_peer(error):
            return PEER_LOST
        raise
