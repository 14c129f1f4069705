"""Stores one after the other: what is measured of each, and how one that cannot be used is reported."""

from pathlib import Path

import pytest

from convoy.benchmark.analysis.stores import store_figures
from convoy.benchmark.groups import Group, VariantSpec
from convoy.benchmark.measure import stores
from convoy.benchmark.results import values
from convoy.benchmark.results.case import Case
from convoy.benchmark.suites.checkpoint import store_variant
from convoy.benchmark.variants.convoy_saving import SAVES_AT_REST
from convoy.benchmark.variants.ranks import RankFailedError, run_together
from convoy.config.benchmark import PredictConfig
from convoy.config.checkpoint import StoreConfig
from convoy.storage.posix import PosixStore
from tests.benchmark.benches import a_group, cases_of_gang, one_of_two
from tests.benchmark.cases import replaced
from tests.ranks import in_a_group


def _why_not(rank: int, root: str, places: tuple[str, str]) -> str:
    try:
        stores.check_store(root, places[rank], StoreConfig(), one_of_two(rank))
    except RankFailedError as error:
        return str(error)
    return ""


def _reason(root: str, second: str | None = None) -> str:
    """Of both ranks, which have the same. second: place of the second rank."""
    place = f"{root}/place"
    first, other = in_a_group(2, _why_not, root, (place, second or place))
    assert first == other
    return str(first)


def test_a_folder_can_be_used(tmp_path: Path) -> None:
    assert _reason(str(tmp_path)) == ""


def test_a_folder_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    assert _reason(f"{tmp_path}/fsx") == f"{tmp_path}/fsx: there is no such folder; is it mounted?"
    assert not (tmp_path / "fsx").exists()


def test_a_bucket_that_does_not_exist(s3_environment: str) -> None:
    assert "NoSuchBucket" in _reason("s3://nobody-made-this-one/a")


def test_a_server_that_does_not_answer(s3_environment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    assert "Could not connect" in _reason("s3://bucket/a")


def test_a_store_that_replaces_what_is_to_be_created_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Replacing(PosixStore):
        def create(self, name: str, data: bytes, *, private: bool = False) -> bool:
            self.write(name, data)
            return True

    monkeypatch.setattr(stores, "open_store", lambda uri, config: Replacing(uri))
    assert "replaces an object that was to be created only if absent" in _reason(str(tmp_path))


def test_folders_of_one_path_on_two_hosts_are_no_store(tmp_path: Path) -> None:
    assert "all nodes must share the store" in _reason(str(tmp_path), second=f"{tmp_path}/of-another-host")


def _raise_on_rank_1(rank: int) -> str:
    def work() -> int:
        if rank == 1:
            raise OSError("no space")
        return 1

    try:
        run_together(work, one_of_two(rank))
    except RankFailedError as error:
        return str(error)
    return ""


def test_what_one_rank_meets_all_raise() -> None:
    assert in_a_group(2, _raise_on_rank_1) == ["rank 1: no space", "rank 1: no space"]


def _group(root: Path, *names: str) -> Group:
    group = a_group(str(root), VariantSpec(name="any"), nodes=2, suite="checkpoint")
    variants = tuple(store_variant(name, group.run) for name in names)
    changes = {"variants": variants, "baseline": None, "stores": True, "predict": PredictConfig(least_mb_per_writer=1)}
    return replaced(group, **changes)


@pytest.mark.slow
class TestGang:
    """A real gang of two nodes of this host."""

    @pytest.fixture(scope="class")
    def root(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("root")

    def test_a_store_that_fails_costs_only_its_own_case(self, root: Path, s3_uri: str) -> None:
        """In one gang, since to start one takes seconds."""
        cases = cases_of_gang(_group(root, "/not/there", "local", s3_uri), nodes=2)
        missing, local, bucket = cases["/not/there"], cases["local"], cases[s3_uri]
        assert (missing.status, missing.reason) == ("failed", "/not/there: there is no such folder; is it mounted?")
        for case in (local, bucket):
            _check_measured(case)
        _check_folder(local)
        _check_bucket(bucket)
        assert [figures.store for figures in store_figures([*cases.values()])] == [
            "local",
            "local",
            "/not/there",
            s3_uri,
        ]
        assert list((root / "benchmarks-checkpoints").iterdir()) == []


def _check_measured(case: Case) -> None:
    assert case.status == "measured", case.reason
    for name in (values.SAVE, values.RESTORE, values.DURABLE):
        assert len(case.samples[name]) == SAVES_AT_REST
        assert all(seconds > 0 for seconds in case.samples[name])
    assert 2e6 <= case.values[values.REST_BYTES] < 2.1e6


def _check_folder(case: Case) -> None:
    """The bytes that fill the state up do not become smaller."""
    assert 0.8 * 2e6 < case.values[values.GZIP_BYTES] < 2.1e6
    assert len(case.samples[values.GZIP_SAVE]) == len(case.samples[values.GZIP_RESTORE]) > 0
    assert values.SAVE_PUTS not in case.values


def _check_bucket(case: Case) -> None:
    """A save is two parts with a record each and a commit; a restore reads these and marks what it reads."""
    assert 5 <= case.values[values.SAVE_PUTS] < 30
    assert 4 <= case.values[values.RESTORE_GETS] < 60
    assert values.GZIP_BYTES not in case.values
