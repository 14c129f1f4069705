"""A job's record: what stays fixed."""

from pathlib import Path

import pytest

from convoy.config.errors import ConfigError
from convoy.config.loader import resolve
from convoy.job.record import (
    RECORD,
    check_name,
    check_same_job,
    ensure_record,
    job_store,
    read_checked_record,
    read_record,
    tier_uris,
)
from convoy.storage import Store, StoreUnavailable
from tests.s3_proxy import S3Proxy


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return job_store(str(tmp_path), "blue")


def test_the_first_to_come_makes_the_record_and_the_next_reads_it(store: Store):
    assert read_record(store) is None
    first = ensure_record(store, "blue", resolve({}, {}), "data-1")
    again = ensure_record(store, "blue", resolve({"train": {"steps": 999}}, {}), "data-1")
    assert first == again == read_record(store)


def test_a_store_that_replaces_what_is_there_never_gets_a_record(
    s3_uri: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
):
    with S3Proxy(s3_endpoint) as proxy:
        proxy.forgets.add("if-none-match")
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        store = job_store(s3_uri, "blue")
        with pytest.raises(ConfigError, match=r"blue: replaces an object that was .* only if absent; no job"):
            ensure_record(store, "blue", resolve({}, {}), "data-1")
        assert store.sizes("") == {}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"train": {"seed": 7}}, "train.seed = 7: job blue was started with 0"),
        ({"train": {"global_batch": 32}}, "train.global_batch = 32: job blue was started with 8"),
    ],
)
def test_a_changed_seed_or_global_batch_is_refused(store: Store, change: dict, line: str):
    ensure_record(store, "blue", resolve({}, {}), "data-1")
    with pytest.raises(ConfigError, match=line):
        ensure_record(store, "blue", resolve({}, change), "data-1")


def test_a_record_that_was_there_and_is_gone_is_an_outage_and_no_new_job(store: Store):
    made = ensure_record(store, "blue", resolve({}, {}), "data-1")
    assert read_checked_record(store, resolve({}, {}), "data-1") == made
    check_same_job(made, resolve({}, {}))  # the data are not known yet
    with pytest.raises(
        ConfigError, match=r"data: is other data \(fingerprint data-2\) than job blue was started with \(data-1\)"
    ):
        read_checked_record(store, resolve({}, {}), "data-2")

    store.delete(RECORD)

    with pytest.raises(StoreUnavailable, match=r"JOB\.json was there when the run began, and is gone"):
        read_checked_record(store, resolve({}, {}), "data-1")
    assert read_record(store) is None


def test_the_root_is_the_first_tier():
    config = resolve({}, {"checkpoint": {"tiers": ["s3://b/p/", "/fsx"]}})
    assert tier_uris("/root", "blue", config) == ["/root/blue", "s3://b/p/blue", "/fsx/blue"]


@pytest.mark.parametrize("name", ["", "-x", "a/b", "..", "a b", "_data", "x" * 129])
def test_names_that_could_leave_the_folder_or_collide_are_refused(name: str):
    with pytest.raises(ConfigError, match="must begin with a letter or digit"):
        check_name(name)
