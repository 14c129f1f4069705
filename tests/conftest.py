"""What tests of several rooms share: protocols of S3 and GCS, a metadata service, and which tests share a process."""

import contextlib
import functools
import logging
import os
import platform
import socket
import sys
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
import requests
from hypothesis import settings
from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from moto.server import ThreadedMotoServer
from mypy_boto3_s3 import S3Client
from xdist.scheduler import LoadScopeScheduling

from convoy.drills.testbed.imds import ImdsStandIn
from convoy.storage import Store, open_store
from tests.campaign import in_full, left_out, this_commit
from tests.processes import STARTS, starts_processes, uses_bucket
from tests.storage.gcs_emulator import GcsEmulator

# No deadline: how long an example takes tells of the machine's other work.
settings.register_profile("convoy", deadline=None, max_examples=100 if in_full() else 35)
settings.load_profile("convoy")

# Or torch's compiler would first build small libraries in each new folder, to learn what this machine's g++ can.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

# For each request moto lists its modules' folders, and tries the patterns of their hosts one after the other.
DomainDispatcherApplication.get_backend_for_host = functools.cache(  # type: ignore[method-assign]
    DomainDispatcherApplication.get_backend_for_host
)
logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request, which nobody reads


class _ByFile(LoadScopeScheduling):
    """Tests of one file share its fixtures, and those that look at runs of the flow share these."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file == "tests/flows/test_complete.py":
            return file  # which has runs of its own, and takes as long as all others
        return "flows" if file.startswith("tests/flows/") or file == "tests/cli/test_main.py" else file


LONG = (
    "tests/browser/test_benchmark_card.py", "tests/flows/", "tests/benchmark/", "tests/checkpoint/test_crash.py",
    "tests/training/", "tests/gang/", "tests/infra/test_aws_batch_destroyed.py", "tests/infra/test_aws_batch.py",
    "tests/infra/test_least_privilege.py", "tests/infra/test_stacks.py", "tests/infra/test_linters.py",
)  # fmt: skip
"""Where files take minutes: they come first, so that no process is left with one when the others have done all else.
The last takes a second: the process with a file of one test is given another at once."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In the same order in each process, and without what is left to other commits, unless it is asked for by name."""
    if not in_full() and not any("::" in word for word in config.args):
        unwanted = left_out(items, this_commit())
        config.hook.pytest_deselected(items=unwanted)
        items[:] = [item for item in items if item not in set(unwanted)]
    for item in items:
        if starts_processes(item) or uses_bucket(item):
            item.add_marker("processes")
    items.sort(key=lambda item: next((i for i, path in enumerate(LONG) if item.nodeid.startswith(path)), len(LONG)))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where there are several processes."""
    config.option.loadscopereorder = False  # by how many tests a file has, which tells little of its time
    return _ByFile(config, log)


_guarded: list[str] = []
"""The test that is running, if `make check` runs it too."""


def _refuse_processes(event: str, _: object) -> None:
    if event in STARTS and _guarded:
        pytest.fail(f"{_guarded[0]} starts a process ({event}): mark it with pytest.mark.processes")


platform.processor()  # asks `uname -p` the first time, for whichever test imports what wants to know it
sys.addaudithook(_refuse_processes)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Fail a test that starts a process unless it is marked."""
    marked = {"processes", "slow", "system"} & {mark.name for mark in item.iter_markers()}
    _guarded[:] = [] if marked else [item.nodeid]
    try:
        return (yield)
    finally:
        _guarded.clear()


@dataclass
class S3Server:
    """A moto server of one's own, which can go away and come back with what it held."""

    url: str
    _server: ThreadedMotoServer

    def stop(self) -> None:
        """At once: by itself it looks twice per second only whether it is to stop, and whenever somebody connects."""
        stopping = threading.Thread(target=self._server.stop)
        stopping.start()
        while stopping.is_alive():
            with contextlib.suppress(OSError), socket.create_connection(self._address):
                stopping.join(0.02)

    def start_again(self) -> None:
        """Listen on the same port again; moto keeps its objects in this process."""
        self._server = ThreadedMotoServer(*self._address, verbose=False)
        self._server.start()

    @property
    def _address(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)


def _started() -> S3Server:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    return S3Server(f"http://{host}:{port}", server)


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """URL of an S3 server that lives as long as the tests."""
    server = _started()
    yield server.url
    server.stop()


@pytest.fixture
def s3_environment(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The endpoint, with the environment that leads boto, s3fs and Metaflow to it, child processes included."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "AWS_ENDPOINT_URL": s3_endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "METAFLOW_S3_ENDPOINT_URL": s3_endpoint,
    }.items():
        monkeypatch.setenv(name, value)
    return s3_endpoint


@pytest.fixture(scope="session")
def s3_client(s3_endpoint: str) -> S3Client:
    """A client of the server, for what a Store cannot do."""
    return boto3.session.Session("test", "test", region_name="us-east-1").client("s3", endpoint_url=s3_endpoint)


@pytest.fixture
def s3_uri(s3_environment: str, s3_client: S3Client) -> str:
    """`s3://bucket/prefix` in a bucket of this test's own."""
    bucket = f"test-{uuid.uuid4().hex}"
    s3_client.create_bucket(Bucket=bucket)
    return f"s3://{bucket}/some/prefix"


@pytest.fixture
def s3_server(s3_uri: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A server that the test may stop; it serves the buckets of `s3_uri` too. Requests are tried only once."""
    server = _started()
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def gcs_endpoint() -> Iterator[str]:
    """URL of a server of Google's JSON API; that of $CONVOY_GCS_TESTBENCH, where one was started by hand."""
    if by_hand := os.environ.get("CONVOY_GCS_TESTBENCH"):
        yield by_hand
        return
    with GcsEmulator() as emulator:
        yield emulator.url


@pytest.fixture
def gcs_uri(gcs_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """`gs://bucket/prefix` in a bucket of this test's own, with the environment that leads the library there."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_endpoint)
    bucket = f"test-{uuid.uuid4().hex}"
    requests.post(f"{gcs_endpoint}/storage/v1/b?project=test", json={"name": bucket}, timeout=60).raise_for_status()
    return f"gs://{bucket}/some/prefix"


@pytest.fixture
def imds() -> Iterator[ImdsStandIn]:
    """A stand-in for EC2's metadata service."""
    with ImdsStandIn() as server:
        yield server


@pytest.fixture(params=["posix", "s3", "gcs"])
def store_uri(request: pytest.FixtureRequest) -> str:
    """The URI of an empty store: once a folder, once S3, once Google's."""
    if request.param != "posix":
        return str(request.getfixturevalue(f"{request.param}_uri"))
    return str(request.getfixturevalue("tmp_path") / "store")


@pytest.fixture
def store(store_uri: str) -> Store:
    """An empty store: once in a folder, once in S3, once in Google's."""
    return open_store(store_uri)


@pytest.fixture
def local(tmp_path: Path) -> Store:
    """An empty store in a folder."""
    return open_store(str(tmp_path / "store"))
