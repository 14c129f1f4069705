"""Convoy's checkpoints on S3: the share of a link's bandwidth, requests and CPU per GB, and beside raw parallel boto3.

    python benchmarks/checkpoint_s3.py [--capped-mib 512] [--pairs 15] [--out benchmarks/results/checkpoint_s3.json]

The server is one in memory, in a process of its own, over HTTP; `--server moto` takes moto's, which reads the whole
object for each range and then limits itself. Two parts, each with its savers in turn in every round:

1. *capped*: everything goes through a proxy that lets 100 MB/s pass, which is what limits then. The share of the cap is
   the state's bytes over the time from `save()` to the commit, or that of a whole `restore()`.
2. *uncapped*: straight to the server, with which the client shares the cores. Read the ratios of pairs, not the MB/s.

`raw` is a multipart upload with parts of 8 MiB in threads, and ranged GETs of 8 MiB in threads into memory, with a
boto3 client that neither signs nor checksums bodies: the least that can be done with boto3. `boto3` is its own
`upload_fileobj` and `download_fileobj` as they come. Only Convoy checks what it has read. Its writer process is that of
`verify=False`: nobody else reads back what was put.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import boto3
import torch
from checkpoint_s3_savers import BUCKET, MIB, SAVERS, Saver
from measured import cpu_seconds, descendants, percentiles, provenance, ratio_of_medians
from s3_servers import SERVERS, Server, capped_link

CAP = 100_000_000
"""Bytes a second."""

LEAST_SHARE = 0.95
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@dataclass(frozen=True)
class Turn:
    """What one saver took in one round. Seconds, but for the requests."""

    save: float
    """To the commit."""
    restore: float
    cpu_save_training: float
    cpu_save_writer: float
    cpu_restore: float
    requests_save: int
    requests_restore: int


def main() -> int:
    options = _options()
    os.environ.update(CREDENTIALS)
    with SERVERS[options.server]() as server, capped_link(server, CAP) as link:
        boto3.session.Session().client("s3", endpoint_url=server.url).create_bucket(Bucket=BUCKET)
        capped = rounds(link, server, options.capped_mib, options.capped_rounds, options.savers)
        uncapped = rounds(server.url, server, options.mib, options.pairs, options.savers)
    result = summarise(capped, options.capped_mib * MIB, uncapped, options.mib * MIB)
    print("\n".join(table(result)))
    if options.out is not None:
        told = {**vars(options), "out": str(options.out)}
        record = {**provenance(), "command": " ".join(sys.argv), "options": told, **result}
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if all(share["met"] for share in result["acceptance"].values()) else 1


def rounds(url: str, server: Server, mib: int, count: int, names: Sequence[str]) -> dict[str, list[Turn]]:
    """A turn of each saver per round, after one that warms up; who goes first moves on. url: what they talk to."""
    data = torch.randint(256, (mib * MIB,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    others = set(descendants(os.getpid()))
    savers: dict[str, Saver] = {name: SAVERS[name](url, data) for name in names}
    turns: dict[str, list[Turn]] = {name: [] for name in names}
    for number in range(-1, count):
        first = number % len(names)
        for name in [*names[first:], *names[:first]]:
            turn = _turn(savers[name], number + 2, server, others)
            savers[name].check()
            if number >= 0:
                turns[name].append(turn)
            _remove(server.url, lambda key, step=number + 2: not key.startswith("convoy/") or _older(key, step))
    for saver in savers.values():
        saver.close()
    _remove(server.url, lambda _: True)
    return turns


def _turn(saver: Saver, step: int, server: Server, others: set[int]) -> Turn:
    """others: processes that do not write for the saver."""
    began = _now(server, others)
    saver.save(step)
    saved = _now(server, others)
    saver.load(step)
    loaded = _now(server, others)
    return Turn(
        save=saved.seconds - began.seconds,
        restore=loaded.seconds - saved.seconds,
        cpu_save_training=saved.cpu - began.cpu,
        cpu_save_writer=saved.writers - began.writers,
        cpu_restore=loaded.cpu - saved.cpu,
        requests_save=saved.requests - began.requests,
        requests_restore=loaded.requests - saved.requests,
    )


@dataclass(frozen=True)
class _Moment:
    seconds: float
    cpu: float
    writers: float
    requests: int


def _now(server: Server, others: set[int]) -> _Moment:
    writers = sum(cpu_seconds(pid) for pid in set(descendants(os.getpid())) - others)
    return _Moment(time.perf_counter(), time.process_time(), writers, server.requests())


def summarise(
    capped: dict[str, list[Turn]], capped_bytes: int, uncapped: dict[str, list[Turn]], uncapped_bytes: int
) -> dict[str, Any]:
    """Of both parts; bytes: of the state."""
    shares = {}
    if "convoy" in capped:
        for what in ("save", "restore"):
            share = capped_bytes / CAP / statistics.median(getattr(turn, what) for turn in capped["convoy"])
            shares[f"share_of_cap_{what}"] = {"found": share, "limit": LEAST_SHARE, "met": share >= LEAST_SHARE}
    pairs = {}
    for other in uncapped.keys() - {"convoy"} if "convoy" in uncapped else ():
        both = list(zip(uncapped["convoy"], uncapped[other], strict=True))
        pairs[other] = {
            what: {
                **ratio_of_medians([(getattr(a, what), getattr(b, what)) for a, b in both]),
                "median_of_pairs": statistics.median(getattr(a, what) / getattr(b, what) for a, b in both),
            }
            for what in ("save", "restore")
        }
    return {
        "cap_bytes_per_second": CAP,
        "capped": {name: _of_saver(turns, capped_bytes) for name, turns in capped.items()},
        "uncapped": {name: _of_saver(turns, uncapped_bytes) for name, turns in uncapped.items()},
        "convoy_to": pairs,
        "acceptance": shares,
        "raw": {
            "capped": {name: [asdict(turn) for turn in turns] for name, turns in capped.items()},
            "uncapped": {name: [asdict(turn) for turn in turns] for name, turns in uncapped.items()},
        },
    }


def _of_saver(turns: Sequence[Turn], state_bytes: int) -> dict[str, Any]:
    gigabytes = state_bytes / 1e9
    means = {name: statistics.mean(asdict(turn)[name] for turn in turns) / gigabytes for name in asdict(turns[0])}
    seconds = {what: percentiles([asdict(turn)[what] for turn in turns]) for what in ("save", "restore")}
    return {
        "state_bytes": state_bytes,
        "seconds": seconds,
        "mb_per_second": {what: state_bytes / 1e6 / told["p50"] for what, told in seconds.items()},
        "cpu_seconds_per_gb": {n.removeprefix("cpu_"): v for n, v in means.items() if n.startswith("cpu_")},
        "requests_per_gb": {n.removeprefix("requests_"): v for n, v in means.items() if n.startswith("requests_")},
    }


def table(result: dict[str, Any]) -> list[str]:
    """For the terminal."""
    lines = []
    for part in ("capped", "uncapped"):
        lines.append(f"{part}, save and restore:")
        for name, told in result[part].items():
            rate, cpu, requests = told["mb_per_second"], told["cpu_seconds_per_gb"], told["requests_per_gb"]
            lines.append(
                f"  {name:8} {rate['save']:6.1f} and {rate['restore']:6.1f} MB/s; CPU s/GB {cpu['save_training']:.2f}"
                f"+{cpu['save_writer']:.2f} (writer) and {cpu['restore']:.2f}; "
                f"requests/GB {requests['save']:.0f} and {requests['restore']:.0f}"
            )
    for other, pairs in sorted(result["convoy_to"].items()):
        for what, told in pairs.items():
            lines.append(
                f"convoy / {other}, {what} uncapped: median of {told['pairs']} pairs {told['median_of_pairs']:.3f}; "
                f"ratio of medians {told['ratio']:.3f} ({told['low']:.3f} to {told['high']:.3f})"
            )
    for what, told in result["acceptance"].items():
        lines.append(f"{what}: {told['found']:.3f}, at least {told['limit']}: {'met' if told['met'] else 'NOT MET'}")
    return lines


def _remove(server: str, wanted: Callable[[str], bool]) -> None:
    """Objects take the server's memory. Of Convoy's newest commit all stays: the next save builds on it."""
    s3 = boto3.session.Session().client("s3", endpoint_url=server)
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
        for found in page.get("Contents", []):
            if wanted(found["Key"]):
                s3.delete_object(Bucket=BUCKET, Key=found["Key"])


def _older(key: str, step: int) -> bool:
    """Whether a commit or a shard is of an earlier step."""
    parts = key.split("/")
    return parts[1] in ("commits", "shards") and int(parts[2].removesuffix(".json").split("-")[1]) < step


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capped-mib", type=int, default=512, help="state that goes through the capped proxy")
    parser.add_argument("--capped-rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=256, help="state that goes straight to the server")
    parser.add_argument("--pairs", type=int, default=15, help="rounds of the uncapped part")
    parser.add_argument("--savers", nargs="+", choices=SAVERS, default=list(SAVERS))
    parser.add_argument("--server", choices=SERVERS, default="memory")
    parser.add_argument("--out", type=Path, help="JSON file for the result")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
