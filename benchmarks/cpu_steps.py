"""What steps of Convoy's own training take on this host's CPU: the planner's constants of CPUs are fitted to them.

    python benchmarks/cpu_steps.py [--only NAME…] [--rounds 6] [--out benchmarks/results/cpu_steps.json]
    python tools/cpu_constants.py                       # then: the constants that these rows give

Two ranks, each on cores of its own and with one thread, train each configuration together, and each by itself at the
same time, block by block in turns. Each row is the median of the blocks of one of the two, of the slower rank,
next to what that measured of the machine in the same world before them, as the ranks of a job do after its first step.
Nothing else may run meanwhile: `others_cores` of the file is how many of the host's cores others kept busy on average.
All of them take four or five minutes on two cores.
"""

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch.distributed as dist
from measured import option_parser, provenance

import gang  # first of all: it sets how many threads a rank has
from convoy.benchmark.measure.observer import cores_of_rank, pin_threads
from convoy.benchmark.measure.predictions import gather_slowest_machine
from convoy.benchmark.rounds import measure
from convoy.benchmark.variants.convoy import ConvoyVariant
from convoy.benchmark.variants.ranks import join_world
from convoy.config.benchmark import MeasureConfig
from convoy.config.run import RunConfig
from convoy.data.manifest import data_fingerprint
from convoy.data.prepare import prepare_dataset
from convoy.gang.task import Assignment
from convoy.storage import open_store
from convoy.training.batches import RankData
from convoy.training.measure.machine_probe import probe_machine
from convoy.training.process_groups import Ranks

PROBE_SECONDS = 1.0
"""Several times what a job takes: the constants are fitted to it, not to the error of a third of a second."""

WARM_UP_STEPS = 3
"""Before the machine is measured, as after a job's first step."""

LLAMA = {"norm": "rmsnorm", "positions": "rotary", "mlp": "swiglu", "bias": False, "tied_embeddings": False}


@dataclass(frozen=True)
class Configuration:
    """Of one rank's part of a training."""

    name: str
    family: Literal["gpt", "llama"]
    width: int
    layers: int
    length: int
    """Tokens of a sequence."""
    sequences: int
    """Of a pass."""
    dtype: Literal["bf16", "fp32"] = "bf16"
    recomputed: Literal["none", "selective", "full"] = "none"
    passes: int = 1
    vocabulary: int = 4096

    def tree(self, ranks: int) -> dict[str, Any]:
        """The keys of a run of so many ranks."""
        heads = self.width // 64
        model: dict[str, Any] = {"vocab_size": self.vocabulary, "n_layers": self.layers, "d_model": self.width}
        model |= {"n_heads": heads, "max_sequence_length": self.length}
        if self.family == "llama":
            model |= LLAMA | {"n_kv_heads": heads if heads % 2 else heads // 2}
        return {
            "model": model,
            "data": {
                "corpus": {"kind": "synthetic", "tokens": 200_000, "vocab_size": 1024},
                "sequence_length": self.length,
            },
            "train": {
                "steps": 100_000,
                "global_batch": self.sequences * self.passes * ranks,
                "micro_batch": self.sequences,
                "param_dtype": self.dtype,
                "activation_checkpointing": self.recomputed,
            },
        }


CONFIGURATIONS = (
    Configuration("default", "gpt", 192, 4, 256, 4),
    Configuration("default in fp32", "gpt", 192, 4, 256, 4, "fp32"),
    Configuration("one sequence", "gpt", 192, 4, 256, 1),
    Configuration("short sequences", "gpt", 192, 4, 64, 4),
    Configuration("little to compute", "gpt", 192, 8, 64, 1, vocabulary=1024),
    Configuration("many layers", "gpt", 192, 8, 64, 8, "fp32"),
    Configuration("selective", "gpt", 256, 4, 256, 2, "bf16", "selective"),
    Configuration("little to compute in fp32", "gpt", 192, 8, 64, 1, "fp32", "full", vocabulary=1024),
    Configuration("full", "gpt", 256, 6, 256, 4, "bf16", "full"),
    Configuration("two passes", "gpt", 256, 4, 256, 2, passes=2),
    Configuration("large vocabulary", "gpt", 256, 2, 256, 2, vocabulary=16384),
    Configuration("wide and selective in fp32", "gpt", 384, 2, 64, 8, "fp32", "selective"),
    Configuration("widest", "gpt", 512, 2, 256, 1),
    Configuration("widest of few tokens", "gpt", 512, 4, 64, 2),
    Configuration("llama", "llama", 192, 4, 256, 8),
    Configuration("llama in fp32", "llama", 256, 4, 256, 2, "fp32"),
    Configuration("llama, full", "llama", 256, 4, 64, 8, "bf16", "full"),
    Configuration("llama, wide and selective", "llama", 384, 4, 256, 1, "bf16", "selective"),
    Configuration("llama, widest in fp32", "llama", 512, 2, 256, 2, "fp32"),
)


def main() -> int:
    options = _options()
    chosen = [each for each in CONFIGURATIONS if not options.only or each.name in options.only]
    record = {**provenance(), "rounds": options.rounds}
    with tempfile.TemporaryDirectory(prefix="convoy-cpu-steps-") as root:
        data = {each.length: _prepared(_config(each, 1, root)) for each in chosen}
        body = partial(rows_of_rank, chosen=chosen, data=data, rounds=options.rounds)
        busy, own, began = busy_seconds(), own_seconds(), time.perf_counter()
        rows = gang.on_gang(_config(chosen[0], gang.RANKS, root), body)[0]
        theirs = max(0.0, busy_seconds() - busy - own_seconds() + own) / (time.perf_counter() - began)
    options.out.write_text(text_of({**record, "others_cores": round(theirs, 3)}, rows))
    print(f"{options.out}: {len(rows)} steps of {len(chosen)} configurations; others kept {theirs:.2f} cores busy")
    return 0


def busy_seconds() -> float:
    """Of all cores of this host so far, with what the hypervisor took of them. See proc(5)."""
    user, nice, system, _, _, interrupts, soft, stolen = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + interrupts + soft + stolen) / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    """CPU time of this process, and of those of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def text_of(record: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """JSON with a row on each line, so that what changes is seen."""
    lines = ",\n".join(json.dumps(row) for row in rows)
    return json.dumps({**record, "rows": []}, indent=1).removesuffix("[]\n}") + f"[\n{lines}\n]}}\n"


def rows_of_rank(
    assignment: Assignment,
    ranks: Ranks,
    _: RankData,
    chosen: Sequence[Configuration],
    data: Mapping[int, tuple[str, str]],
    rounds: int,
) -> list[dict[str, Any]]:
    """Two of each configuration: of a rank next to another one, and of both together."""
    pin_threads(cores_of_rank(sorted(os.sched_getaffinity(0)), ranks.place.rank, gang.RANKS))
    own, rows = join_world(ranks, 1, assignment.config.parallel), []
    for number, each in enumerate(chosen, 1):
        if ranks.first:
            print(f"{number} of {len(chosen)}: {each.name}", file=sys.stderr, flush=True)
        rows += _rows(each, {1: own, gang.RANKS: ranks}, ranks, str(assignment.config.root), data[each.length], rounds)
    return rows


def _rows(
    each: Configuration, worlds: Mapping[int, Ranks], ranks: Ranks, root: str, data: tuple[str, str], rounds: int
) -> list[dict[str, Any]]:
    """worlds: by the number of ranks that train together. ranks: all, which take turns together."""
    with ExitStack() as stack:
        variants, machines = [], {}
        for count, world in worlds.items():
            config = _config(each, count, root)
            made = ConvoyVariant(str(count), config, world, RankData(config, root, *data, world))
            variants.append(stack.enter_context(closing(made)))
        for variant, (count, world) in zip(variants, worlds.items(), strict=True):
            for _ in range(WARM_UP_STEPS):
                variant.step()
            dist.barrier(group=ranks.control)  # each by itself measures next to the other one too
            machine = gather_slowest_machine(probe_machine(_config(each, count, root), world, PROBE_SECONDS), ranks)
            assert machine is not None
            machines[count] = machine.model_dump(mode="json")
        amount = MeasureConfig.model_construct(rounds=rounds, block_steps=2, block_seconds=0.4, warm_up_most=4)
        measured = measure(variants, amount, ranks)
    return [
        {
            "name": each.name,
            "ranks": count,
            "config": each.tree(count),
            "machine": machines[count],
            "seconds": statistics.median(block.seconds for block in measured[str(count)].blocks),
            "blocks": [round(block.seconds, 6) for block in measured[str(count)].blocks],
        }
        for count in worlds
    ]


def _config(each: Configuration, ranks: int, root: str) -> RunConfig:
    return RunConfig.model_validate({"root": root, **each.tree(ranks)})


def _prepared(config: RunConfig) -> tuple[str, str]:
    manifest = prepare_dataset(config.data, open_store(str(config.root)))
    return manifest.id, data_fingerprint(manifest, config.data)


def _options() -> argparse.Namespace:
    parser = option_parser(__doc__)
    parser.set_defaults(out=Path(__file__).parent / "results" / "cpu_steps.json")
    names = [each.name for each in CONFIGURATIONS]
    parser.add_argument("--only", nargs="+", choices=names, default=[], metavar="NAME", help=", ".join(names))
    parser.add_argument("--rounds", type=int, default=6, help="blocks of each row")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
