"""A kind of store is added by one class and one element of STORES: it keeps every promise, and all that opens or lists
stores follows."""

from pathlib import Path

import pytest

from convoy.config.errors import ConfigError
from convoy.job.events.log import EventWriter, read_events
from convoy.job.events.registry import StepDone
from convoy.job.record import ensure_record, job_store, read_record, tier_stores
from convoy.launch.checks.compatibility import shared_storage_demands
from convoy.storage import Store, is_shared, open_store, uri
from convoy.storage.uri import StoreBackend
from tests.storage.memory import OBJECTS, MemoryStore
from tests.storage.test_contract import *  # noqa: F403 - every promise, asked of the store of this file
from tests.training.job import tiny

MEMORY = StoreBackend("mem://", "a mem:// name", shared=True, open=MemoryStore)


@pytest.fixture(autouse=True)
def _memory_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uri, "STORES", (MEMORY, *uri.STORES))
    OBJECTS.clear()


@pytest.fixture
def store_uri() -> str:
    return "mem://store"


def test_the_uri_decides_the_kind_of_store(store: Store, store_uri: str) -> None:
    assert isinstance(store, MemoryStore)
    assert store.uri == store_uri


def test_a_job_and_its_tiers_can_be_there(tmp_path: Path) -> None:
    config = tiny(checkpoint={"tiers": [str(tmp_path / "tier"), "mem://tier"]})
    root = job_store("mem://root", "blue", config)
    record = ensure_record(root, "blue", config, "data")

    assert read_record(root) == record
    assert [store.uri for store in tier_stores("mem://root", "blue", config)] == [
        "mem://root/blue", f"{tmp_path}/tier/blue", "mem://tier/blue",
    ]  # fmt: skip
    writer = EventWriter(root, 1, 0)
    writer.append(StepDone(step=3, loss=1.5, grad_norm=1, lr=0.1, tokens=10, seconds=1.0))
    writer.close()
    assert [event.loss for event in read_events(root) if isinstance(event, StepDone)] == [1.5]


def test_machines_share_it_and_the_choices_name_it() -> None:
    assert is_shared("mem://root")
    assert not is_shared("/mem")
    remote = tiny(cluster={"backend": "batch", "instance_type": "p4d.24xlarge", "nodes": 2}).model_copy(
        update={"root": "mem://root"}
    )
    for demand in shared_storage_demands(remote):
        demand()
    choices = "must be a mem:// name or an s3:// prefix or a gs:// prefix"
    with pytest.raises(ConfigError, match=f"root = /runs: {choices} or a folder"):
        shared_storage_demands(remote.model_copy(update={"root": "/runs"}))[0]()
    with pytest.raises(ConfigError, match=f"^ftp://b: {choices} or a folder$"):
        open_store("ftp://b")
