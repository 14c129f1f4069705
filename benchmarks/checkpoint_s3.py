"""Convoy's checkpoints on S3: the share of a link's bandwidth, requests and CPU per GB, and versus raw parallel boto3.

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
import io
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import boto3
import torch
from botocore.config import Config
from measured import cpu_seconds, descendants, percentiles, provenance, ratio_of_medians
from s3_servers import SERVERS, Server, capped_link

from convoy.checkpoint import Checkpoints
from convoy.config.checkpoint import StoreConfig

BUCKET = "benchmark"
MIB = 2**20
PART = 8 * MIB
THREADS = 8
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


class Saver:
    """One way to put a state to S3 and to get it back."""

    def __init__(self, url: str, data: torch.Tensor) -> None:
        self.source = memoryview(data.numpy())

    def save(self, step: int) -> None:
        """Return when it is there for good."""
        raise NotImplementedError

    def load(self, step: int) -> memoryview:
        """What comes back."""
        raise NotImplementedError

    def close(self) -> None:
        pass


class Convoy(Saver):
    """Convoy's, without reading back after each commit, which no other does. One rank, without a process group."""

    def __init__(self, url: str, data: torch.Tensor) -> None:
        self.target = torch.zeros_like(data)
        self.checkpoints = Checkpoints(f"s3://{BUCKET}/convoy", verify=False, store=StoreConfig(endpoint_url=url))
        super().__init__(url, data)

    def save(self, step: int) -> None:
        self.checkpoints.save(step, _named(torch.frombuffer(self.source, dtype=torch.uint8))).wait()

    def load(self, step: int) -> memoryview:
        restored = self.checkpoints.restore(_named(self.target))
        if restored is None or restored.step != step:
            raise RuntimeError(f"step {step} was saved, and not restored: {restored}")
        return memoryview(self.target.numpy())

    def close(self) -> None:
        self.checkpoints.close()


def _named(data: torch.Tensor) -> dict[str, torch.Tensor]:
    """The bytes as tensors of a model."""
    return {f"layer{i}": part for i, part in enumerate(data.chunk(16))}


class Raw(Saver):
    """Parallel parts and parallel ranges, and nothing else."""

    def __init__(self, url: str, data: torch.Tensor) -> None:
        super().__init__(url, data)
        config = Config(
            max_pool_connections=THREADS,
            s3={"payload_signing_enabled": False},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        self.s3 = boto3.session.Session().client("s3", endpoint_url=url, config=config)
        self.target = bytearray(len(self.source))
        self.threads = ThreadPoolExecutor(THREADS)

    def save(self, step: int) -> None:
        where = {"Bucket": BUCKET, "Key": f"raw/{step}"}
        upload = self.s3.create_multipart_upload(**where)["UploadId"]

        def send(number: int) -> dict[str, Any]:
            body = bytes(self.source[(number - 1) * PART : number * PART])
            sent = self.s3.upload_part(**where, UploadId=upload, PartNumber=number, Body=body)
            return {"PartNumber": number, "ETag": sent["ETag"]}

        parts = list(self.threads.map(send, range(1, -(-len(self.source) // PART) + 1)))
        self.s3.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": parts})

    def load(self, step: int) -> memoryview:
        def receive(start: int) -> None:
            with memoryview(self.target)[start : start + PART] as part:
                span = f"bytes={start}-{start + len(part) - 1}"
                body = self.s3.get_object(Bucket=BUCKET, Key=f"raw/{step}", Range=span)["Body"]
                at = 0
                while at < len(part):
                    received = body.readinto(part[at:])
                    if not received:
                        raise EOFError(f"the reply ended at byte {start + at}")
                    at += received

        list(self.threads.map(receive, range(0, len(self.target), PART)))
        return memoryview(self.target)

    def close(self) -> None:
        self.threads.shutdown()


class Boto3(Saver):
    """boto3's own transfer manager, as it comes."""

    def __init__(self, url: str, data: torch.Tensor) -> None:
        super().__init__(url, data)
        self.s3 = boto3.session.Session().client("s3", endpoint_url=url)
        self.target = io.BytesIO()

    def save(self, step: int) -> None:
        self.s3.upload_fileobj(io.BytesIO(self.source), BUCKET, f"boto3/{step}")

    def load(self, step: int) -> memoryview:
        self.target.seek(0)
        self.s3.download_fileobj(BUCKET, f"boto3/{step}", self.target)
        return self.target.getbuffer()


SAVERS: dict[str, type[Saver]] = {"convoy": Convoy, "raw": Raw, "boto3": Boto3}


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
        plain = {**vars(options), "out": str(options.out)}
        record = {**provenance(), "command": " ".join(sys.argv), "options": plain, **result}
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
    loaded = saver.load(step)
    restored = _now(server, others)
    if loaded != saver.source:
        raise RuntimeError(f"step {step}: loaded something else than was saved")
    save, cpu_save_training, cpu_save_writer, requests_save = (b - a for a, b in zip(began, saved, strict=True))
    restore, cpu_restore, _, requests_restore = (b - a for a, b in zip(saved, restored, strict=True))
    return Turn(
        save, restore, cpu_save_training, cpu_save_writer, cpu_restore, int(requests_save), int(requests_restore)
    )


def _now(server: Server, others: set[int]) -> tuple[float, float, float, float]:
    """Seconds, CPU seconds of this process and of those that write for a saver, and requests: each in all."""
    writers = sum(cpu_seconds(pid) for pid in set(descendants(os.getpid())) - others)
    return time.perf_counter(), time.process_time(), writers, server.requests()


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
        "mb_per_second": {what: state_bytes / 1e6 / spread["p50"] for what, spread in seconds.items()},
        "cpu_seconds_per_gb": {n.removeprefix("cpu_"): v for n, v in means.items() if n.startswith("cpu_")},
        "requests_per_gb": {n.removeprefix("requests_"): v for n, v in means.items() if n.startswith("requests_")},
    }


def table(result: dict[str, Any]) -> list[str]:
    """For the terminal."""
    lines = []
    for part in ("capped", "uncapped"):
        lines.append(f"{part}, save and restore:")
        for name, saver in result[part].items():
            rate, cpu, requests = saver["mb_per_second"], saver["cpu_seconds_per_gb"], saver["requests_per_gb"]
            lines.append(
                f"  {name:8} {rate['save']:6.1f} and {rate['restore']:6.1f} MB/s; CPU s/GB {cpu['save_training']:.2f}"
                f"+{cpu['save_writer']:.2f} (writer) and {cpu['restore']:.2f}; "
                f"requests/GB {requests['save']:.0f} and {requests['restore']:.0f}"
            )
    for other, pairs in sorted(result["convoy_to"].items()):
        for what, ratio in pairs.items():
            lines.append(
                f"convoy / {other}, {what} uncapped: median of {ratio['pairs']} pairs {ratio['median_of_pairs']:.3f}; "
                f"ratio of medians {ratio['ratio']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"
            )
    for what, share in result["acceptance"].items():
        lines.append(f"{what}: {share['found']:.3f}, at least {share['limit']}: {'met' if share['met'] else 'NOT MET'}")
    return lines


def _remove(server: str, wanted: Callable[[str], bool]) -> None:
    """Objects take the server's memory. Of Convoy's newest commit all stays: the next save builds on it."""
    s3 = boto3.session.Session().client("s3", endpoint_url=server)
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
        for entry in page.get("Contents", []):
            if wanted(entry["Key"]):
                s3.delete_object(Bucket=BUCKET, Key=entry["Key"])


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
