"""What an agent finds of the tiers: full, hanging or well, while nobody waits."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from convoy.gang.diagnosis.storage_probe import AWAY_SECONDS, ProbeSettings, StorageProbe, TierChange
from convoy.storage import Store, StoreUnavailable, open_store
from tests.gang.tasks import wait_for

QUICK = ProbeSettings(every_seconds=0.02, least_seconds=0.3)


class Scripted:
    """A store that answers a probe as the test says."""

    def __init__(self, uri: str = "/tier") -> None:
        self.uri = uri
        self.error: Exception | None = None
        self.go_on = threading.Event()
        self.go_on.set()
        self.asked = 0
        self.deleted: list[str] = []

    def probe_write(self, name: str) -> None:
        self.asked += 1
        assert self.go_on.wait(60)
        if self.error is not None:
            raise self.error

    def delete(self, name: str) -> None:
        self.deleted.append(name)


@pytest.fixture
def tiers() -> Iterator[list[Scripted]]:
    stores = [Scripted("/root"), Scripted("/other")]
    yield stores
    for store in stores:
        store.go_on.set()


def probing(tiers: list[Scripted], pace: ProbeSettings = QUICK) -> StorageProbe:
    return StorageProbe(cast(list[Store], tiers), 3, pace)


def next_change(probe: StorageProbe) -> TierChange:
    found: list[TierChange] = []

    def happened() -> list[TierChange]:
        found.extend(probe.take_changes(time.monotonic()))
        return found

    wait_for("a change", happened)
    (change,) = found
    return change


def looked_for(probe: StorageProbe, seconds: float) -> list[TierChange]:
    """All changes in so many seconds."""
    found, until = list[TierChange](), time.monotonic() + seconds
    while time.monotonic() < until:
        found += probe.take_changes(time.monotonic())
        time.sleep(0.02)
    return found


def asked_more(tier: Scripted, times: int) -> None:
    before = tier.asked
    wait_for("more questions", lambda: tier.asked >= before + times)


def test_of_tiers_that_are_well_nothing_is_told(tiers: list[Scripted]) -> None:
    with probing(tiers) as probe:
        assert looked_for(probe, 0.5) == []
        assert probe.unusable_tiers == frozenset()
    assert min(tier.asked for tier in tiers) > 3


def test_a_tier_that_refuses_is_told_once_and_again_when_it_is_well(tiers: list[Scripted]) -> None:
    with probing(tiers) as probe:
        asked_more(tiers[1], 1)
        tiers[1].error = StoreUnavailable(28, "No space left on device", "/other/x")
        change = next_change(probe)
        assert (change.tier, change.uri, change.problem) == (1, "/other", "No space left on device")
        assert probe.unusable_tiers == {1}
        assert looked_for(probe, 0.2) == []
        tiers[1].error = None
        change = next_change(probe)
        assert (change.tier, not change.problem) == (1, True)
        assert change.seconds >= 0.15
        assert probe.unusable_tiers == frozenset()


def test_a_tier_that_hangs_is_told_in_time_and_holds_up_no_other(tiers: list[Scripted]) -> None:
    with probing(tiers) as probe:
        asked_more(tiers[0], 2)
        tiers[0].go_on.clear()
        began = time.monotonic()
        change = next_change(probe)
        assert time.monotonic() - began < 5
        assert (change.tier, not change.problem) == (0, False)
        assert change.problem.startswith("no answer for ")
        assert change.seconds >= QUICK.least_seconds
        assert probe.unusable_tiers == frozenset()  # it may be a hiccup
        asked_more(tiers[1], 3)
        tiers[0].go_on.set()
        assert not next_change(probe).problem


def test_saves_leave_a_tier_that_hangs_on(tiers: list[Scripted], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convoy.gang.diagnosis.storage_probe.AWAY_SECONDS", 0.6)
    with probing(tiers) as probe:
        tiers[1].go_on.clear()
        next_change(probe)
        wait_for("the tier to be away", lambda: probe.take_changes(time.monotonic()) or probe.unusable_tiers == {1})
        tiers[1].go_on.set()
        next_change(probe)
        assert probe.unusable_tiers == frozenset()
    assert AWAY_SECONDS >= 5.0


@pytest.mark.processes
def test_a_tier_that_was_slow_all_along_is_given_more_time(tiers: list[Scripted]) -> None:
    slow, pace = tiers[0], ProbeSettings(every_seconds=0.01, least_seconds=0.5)
    answer = slow.probe_write

    def slowly(name: str) -> None:
        time.sleep(0.25)
        answer(name)

    slow.probe_write = slowly  # type: ignore[method-assign]
    with probing([slow], pace) as probe:
        assert looked_for(probe, 0.8) == []
        slow.go_on.clear()
        assert next_change(probe).seconds >= 3 * 0.25


def test_what_this_process_slept_is_not_the_tier_s(tiers: list[Scripted]) -> None:
    """Nobody looks while the process is stopped: what was asked meanwhile may be answered as soon as it goes on."""
    pace = ProbeSettings(every_seconds=0.02, least_seconds=3.0)
    tiers[0].go_on.clear()
    with probing(tiers, pace) as probe:
        wait_for("a question", lambda: tiers[0].asked)
        now = time.monotonic()
        assert probe.take_changes(now) == []
        assert probe.take_changes(now + 100) == []
        assert probe.take_changes(now + 200) == []
        (change,) = [change for later in range(201, 210) for change in probe.take_changes(now + later)]
        assert change.problem


def test_a_tier_that_hangs_does_not_hold_up_the_end(tiers: list[Scripted]) -> None:
    with probing(tiers):
        tiers[0].go_on.clear()
        asked_more(tiers[1], 2)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert (tiers[0].deleted, tiers[1].deleted) == ([], ["probes/00003"])


def test_looking_does_not_make_a_tier_that_is_not_there_yet(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "tier" / "job"))
    store.probe_write("probes/00000")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("nameless", [True, False])
def test_a_folder_that_has_gone_is_away(nameless: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not nameless:
        monkeypatch.setattr("os.open", _without_tmpfile())
    store = open_store(str(tmp_path / "job"))
    store.write("JOB.json", b"{}")
    store.probe_write("probes/00000")
    assert [path.name for path in (tmp_path / "job").iterdir()] == ["JOB.json"]
    (tmp_path / "job").rename(tmp_path / "gone")
    with pytest.raises(StoreUnavailable, match="The folder has gone"):
        store.probe_write("probes/00000")


def _without_tmpfile() -> Callable[..., int]:
    """os.open on a file system without O_TMPFILE."""
    import errno
    import os

    real = os.open

    def refusing(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return real(path, flags, *rest, **named)

    return refusing
