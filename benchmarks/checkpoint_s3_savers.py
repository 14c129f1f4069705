"""Ways to put a state to S3 and to get it back that are compared: Convoy's, bare parallel requests, and boto3's own."""

import io
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import boto3
import torch
from botocore.config import Config

from convoy.checkpoint import Checkpoints
from convoy.config.checkpoint import StoreConfig

BUCKET = "benchmark"
MIB = 2**20
PART = 8 * MIB
THREADS = 8


class Saver(Protocol):
    """One way to put a state to S3 and to get it back."""

    def save(self, step: int) -> None:
        """Return when it is there for good."""

    def load(self, step: int) -> None: ...

    def check(self) -> None:
        """Raises RuntimeError unless the last load gave what was saved."""

    def close(self) -> None: ...


class Convoy:
    """Convoy's, without reading back after each commit, which no other does. One rank, without a process group."""

    def __init__(self, url: str, data: torch.Tensor) -> None:
        self._state = _named(data)
        self._target = _named(torch.zeros_like(data))
        self._checkpoints = Checkpoints(f"s3://{BUCKET}/convoy", verify=False, store=StoreConfig(endpoint_url=url))

    def save(self, step: int) -> None:
        self._checkpoints.save(step, self._state).wait()

    def load(self, step: int) -> None:
        restored = self._checkpoints.restore(self._target)
        if restored is None or restored.step != step:
            raise RuntimeError(f"step {step} was saved, and not restored: {restored}")

    def check(self) -> None:
        if not all(torch.equal(tensor, self._target[name]) for name, tensor in self._state.items()):
            raise RuntimeError("convoy: got something else than was put")

    def close(self) -> None:
        self._checkpoints.close()


def _named(data: torch.Tensor) -> dict[str, torch.Tensor]:
    """The bytes as tensors of a model."""
    return {f"layer{i}": part for i, part in enumerate(data.chunk(16))}


class Raw:
    """Parallel parts and parallel ranges, and nothing else."""

    def __init__(self, url: str, data: torch.Tensor) -> None:
        self._s3 = boto3.session.Session().client(
            "s3",
            endpoint_url=url,
            config=Config(
                max_pool_connections=THREADS,
                s3={"payload_signing_enabled": False},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )
        self._source = memoryview(data.numpy())
        self._target = bytearray(len(self._source))
        self._threads = ThreadPoolExecutor(THREADS)

    def save(self, step: int) -> None:
        where = {"Bucket": BUCKET, "Key": f"raw/{step}"}
        upload = self._s3.create_multipart_upload(**where)["UploadId"]

        def send(number: int) -> dict[str, Any]:
            body = bytes(self._source[(number - 1) * PART : number * PART])
            sent = self._s3.upload_part(**where, UploadId=upload, PartNumber=number, Body=body)
            return {"PartNumber": number, "ETag": sent["ETag"]}

        parts = list(self._threads.map(send, range(1, -(-len(self._source) // PART) + 1)))
        self._s3.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": parts})

    def load(self, step: int) -> None:
        def receive(start: int) -> None:
            with memoryview(self._target)[start : start + PART] as part:
                span = f"bytes={start}-{start + len(part) - 1}"
                body = self._s3.get_object(Bucket=BUCKET, Key=f"raw/{step}", Range=span)["Body"]
                at = 0
                while at < len(part):
                    at += body.readinto(part[at:]) or _broke_off(start + at)

        list(self._threads.map(receive, range(0, len(self._target), PART)))

    def check(self) -> None:
        if self._target != self._source:
            raise RuntimeError("raw: got something else than was put")

    def close(self) -> None:
        self._threads.shutdown()


class Boto3:
    """boto3's own transfer manager, as it comes."""

    def __init__(self, url: str, data: torch.Tensor) -> None:
        self._s3 = boto3.session.Session().client("s3", endpoint_url=url)
        self._source = memoryview(data.numpy())
        self._target = io.BytesIO()

    def save(self, step: int) -> None:
        self._s3.upload_fileobj(io.BytesIO(self._source), BUCKET, f"boto3/{step}")

    def load(self, step: int) -> None:
        self._target.seek(0)
        self._s3.download_fileobj(BUCKET, f"boto3/{step}", self._target)

    def check(self) -> None:
        if self._target.getbuffer() != self._source:
            raise RuntimeError("boto3: got something else than was put")

    def close(self) -> None:
        pass


def _broke_off(at: int) -> int:
    raise EOFError(f"the reply ended at byte {at}")


SAVERS = {"convoy": Convoy, "raw": Raw, "boto3": Boto3}
