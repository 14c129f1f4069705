"""What each source takes for a notice, and what it does not."""

import json
import os
import signal
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.config.run import RunConfig
from convoy.config.train import NoticesConfig
from convoy.drills.testbed.imds import REBALANCE, SPOT_ACTION, ImdsStandIn, Reply, utc
from convoy.gang.notices.imds import Imds
from convoy.gang.notices.notice import NoAnswerError, Notice, NoticeSource, SourceStatus
from convoy.gang.notices.sources import (
    DRAIN,
    INTERRUPT_SECONDS,
    STALE_SECONDS,
    DrainRequest,
    DrainSource,
    LauncherSource,
    NoticeFileSource,
    RebalanceSource,
    SignalSource,
    SpotSource,
    describe_statuses,
    is_on_ec2,
    iso_to_unix,
    machine_sources,
    may_have_metadata,
    poll_machine_sources,
    request_drain,
)
from convoy.gang.stop_signals import EndingSignals
from convoy.launch.checks.preflight import notice_line
from convoy.storage import Store, open_store

NOW = 1_800_000_000.0


@pytest.fixture
def spot(imds: ImdsStandIn) -> SpotSource:
    return SpotSource(client(imds), deadline_seconds=30)


@pytest.fixture
def rebalance(imds: ImdsStandIn) -> RebalanceSource:
    return RebalanceSource(client(imds))


def client(imds: ImdsStandIn) -> Imds:
    return Imds({"AWS_EC2_METADATA_SERVICE_ENDPOINT": imds.url})


def noticed(source: NoticeSource) -> Notice:
    notice = source.poll()
    assert notice is not None
    assert notice.source == source.name
    return notice


def silent(source: NoticeSource) -> str:
    with pytest.raises(NoAnswerError) as caught:
        source.poll()
    return str(caught.value)


# ---- spot interruptions


@pytest.mark.parametrize("action", ["terminate", "stop"])
def test_an_interruption_is_a_notice_with_its_time(spot: SpotSource, imds: ImdsStandIn, action: str) -> None:
    assert spot.poll() is None
    imds.announce_interruption(action, lead_seconds=120)
    notice = noticed(spot)
    assert notice.kind == "end"
    assert notice.deadline == pytest.approx(time.time() + 120, abs=2)
    assert notice.deadline is not None
    assert notice.text == f"EC2 will {action} this spot instance at {utc(notice.deadline)}"


def test_hibernation_begins_at_once(spot: SpotSource, imds: ImdsStandIn) -> None:
    imds.announce_interruption("hibernate")
    assert noticed(spot).deadline == 0


@pytest.mark.parametrize("skew", [-3600.0, -30.0, 30.0, 3600.0])
def test_a_time_is_understood_though_this_host_s_clock_is_wrong(imds: ImdsStandIn, skew: float) -> None:
    spot = SpotSource(client(imds), deadline_seconds=30, clock=lambda: time.time() + skew)
    imds.announce_interruption(lead_seconds=120)
    notice = noticed(spot)
    assert notice.deadline == pytest.approx(time.time() + skew + 120, abs=3)


def test_a_time_that_is_long_over_is_no_notice(spot: SpotSource, imds: ImdsStandIn) -> None:
    """The machine was not reclaimed after all."""
    for action in ("terminate", "hibernate"):
        imds.announce_interruption(action, lead_seconds=-STALE_SECONDS - 5)
        assert spot.poll() is None
        imds.announce_interruption(action, lead_seconds=-STALE_SECONDS + 5)
        assert spot.poll() is not None


@pytest.mark.parametrize("at", ["soon", None, 17, "2026-13-01T00:00:00Z"])
def test_a_notice_without_a_time_lasts_as_long_as_configured(spot: SpotSource, imds: ImdsStandIn, at: object) -> None:
    imds.set_reply(SPOT_ACTION, Reply(json.dumps({"action": "terminate", "time": at})))
    assert noticed(spot).deadline == pytest.approx(time.time() + 30, abs=2)


@pytest.mark.parametrize("text", ["", "terminate", "[]", "null", "{}", '{"action": 3}', "<html>login</html>"])
def test_what_is_not_understood_is_no_notice(spot: SpotSource, imds: ImdsStandIn, text: str) -> None:
    imds.set_reply(SPOT_ACTION, Reply(text))
    assert silent(spot).startswith(SPOT_ACTION)


# ---- rebalance recommendations


def test_a_recommendation_is_a_notice_without_a_deadline(rebalance: RebalanceSource, imds: ImdsStandIn) -> None:
    assert rebalance.poll() is None
    imds.recommend_rebalance()
    notice = noticed(rebalance)
    assert (notice.kind, notice.deadline) == ("rebalance", None)
    assert noticed(rebalance) == notice


def test_a_recommendation_from_before_is_no_news_but_a_new_one_is(
    rebalance: RebalanceSource, imds: ImdsStandIn
) -> None:
    imds.set_reply(REBALANCE, Reply('{"noticeTime": "2026-11-21T10:00:00Z"}'))
    assert rebalance.poll() is None
    assert rebalance.poll() is None
    imds.set_reply(REBALANCE, Reply('{"noticeTime": "2026-11-21T11:00:00Z"}'))
    assert noticed(rebalance).text.endswith("(notice of 2026-11-21T11:00:00Z)")


def test_a_recommendation_that_came_while_there_was_no_answer_yet_is_no_news(
    rebalance: RebalanceSource, imds: ImdsStandIn
) -> None:
    imds.set_reply(REBALANCE, Reply(status=500))
    silent(rebalance)
    imds.recommend_rebalance()
    assert rebalance.poll() is None


def test_a_recommendation_that_is_not_understood_is_none(rebalance: RebalanceSource, imds: ImdsStandIn) -> None:
    assert rebalance.poll() is None
    imds.set_reply(REBALANCE, Reply("yes"))
    assert silent(rebalance) == f"{REBALANCE}: not understood: yes"


# ---- Metaflow's file


def notice_file(tmp_path: Path, text: str | None, now: float = NOW) -> NoticeFileSource:
    path = tmp_path / "notice"
    if text is not None:
        path.write_text(text)
        os.utime(path, (NOW, NOW))
    return NoticeFileSource(path, 30, clock=lambda: now)


def test_metaflow_s_file_names_the_time(tmp_path: Path) -> None:
    notice = noticed(notice_file(tmp_path, f"{utc(NOW + 100)}\n"))
    assert (notice.kind, notice.deadline) == ("end", NOW + 100)
    assert notice.text == f"Metaflow: this spot instance is reclaimed ({utc(NOW + 100)})"


def test_a_file_that_names_no_time_counts_from_when_it_was_written_unless_it_is_still_empty(tmp_path: Path) -> None:
    assert notice_file(tmp_path, "").poll() is None
    assert noticed(notice_file(tmp_path, "soon")).deadline == NOW + 30


@pytest.mark.parametrize("text", [utc(NOW), "soon"])
def test_a_file_left_from_long_ago_is_no_notice(tmp_path: Path, text: str) -> None:
    assert notice_file(tmp_path, text, now=NOW + STALE_SECONDS + 40).poll() is None
    assert notice_file(tmp_path, text, now=NOW + STALE_SECONDS - 40).poll() is not None


def test_a_file_that_is_not_there_or_cannot_be_read_does_not_answer(tmp_path: Path) -> None:
    assert silent(notice_file(tmp_path, None)).endswith("notice: not there, and would be only with a notice")
    (tmp_path / "notice").mkdir()
    assert silent(NoticeFileSource(tmp_path / "notice", 30)).endswith("notice: Is a directory")


# ---- signals, and the end of the launcher


@pytest.fixture
def not_under_nohup() -> Iterator[None]:
    """Where the tests are started by `nohup`, SIGHUP is ignored, and no notice."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("not_under_nohup")
@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (signal.SIGTERM, Notice("sigterm", "end", NOW + 30, "SIGTERM to the agent")),
        (signal.SIGINT, Notice("interrupt", "end", NOW + INTERRUPT_SECONDS, "Ctrl-C")),
        (signal.SIGHUP, Notice("interrupt", "end", NOW + 30, "its terminal was closed")),
    ],
)
def test_a_signal_is_a_notice_with_a_deadline(number: int, expected: Notice) -> None:
    before = signal.getsignal(number)
    with EndingSignals(clock=lambda: NOW) as signals:
        source = SignalSource(signals, deadline_seconds=30)
        assert source.poll() is None
        os.kill(os.getpid(), number)
        assert source.poll() == expected
    assert signal.getsignal(number) == before


def test_a_second_sigterm_gives_no_more_time() -> None:
    times = iter([NOW, NOW + 20])
    with EndingSignals(clock=lambda: next(times)) as signals:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        notice = Notice("sigterm", "end", NOW + 30, "SIGTERM to the agent")
        assert SignalSource(signals, deadline_seconds=30).poll() == notice


@pytest.mark.usefixtures("not_under_nohup")
def test_a_second_ctrl_c_ends_at_once_and_a_second_hangup_does_not() -> None:
    with EndingSignals(clock=lambda: NOW) as signals:
        source = SignalSource(signals, deadline_seconds=30)
        for _ in range(2):  # a shell sends one, and the kernel another
            os.kill(os.getpid(), signal.SIGHUP)
        assert source.poll() == Notice("interrupt", "end", NOW + 30, "its terminal was closed")
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        assert source.poll() == Notice("interrupt", "end", 0, "Ctrl-C, twice")


def test_the_end_of_the_process_that_started_this_one_is_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    source = LauncherSource(deadline_seconds=30, clock=lambda: NOW)
    assert source.poll() is None
    launcher = os.getppid()
    monkeypatch.setattr(os, "getppid", lambda: 1)
    text = f"the run's own process (pid {launcher}) is gone"
    assert source.poll() == Notice("interrupt", "end", NOW + 30, text)


# ---- a person


def wish(run: str = "TrainFlow/7", now: bool = False) -> DrainRequest:
    return DrainRequest(run=run, now=now, host="my-host", requested=NOW)


def test_a_drain_is_for_one_run_and_now_leaves_it_no_time(store: Store) -> None:
    ours, other = DrainSource(store, "TrainFlow/7"), DrainSource(store, "TrainFlow/8")
    assert ours.poll() is None
    request_drain(store, wish())
    assert noticed(ours) == Notice("drain", "end", None, "convoy drain on my-host at 08:00:00 UTC")
    assert other.poll() is None
    request_drain(store, wish(now=True))
    assert noticed(ours) == Notice("drain", "end", 0, "convoy drain --now on my-host at 08:00:00 UTC")


def test_a_root_that_is_gone_does_not_answer(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "job"))
    request_drain(store, wish(run="another"))
    source = DrainSource(store, "TrainFlow/7")
    assert source.poll() is None
    (tmp_path / "job").rename(tmp_path / "elsewhere")
    assert "is it still mounted?" in silent(source)


def test_a_drain_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.write(DRAIN, b"{}")
    assert silent(DrainSource(store, "TrainFlow/7")) == f"{tmp_path}/drain.json: 2 bytes that are not a drain"


# ---- all of them


def test_the_machine_s_sources_all_foretell_its_end(imds: ImdsStandIn, tmp_path: Path) -> None:
    environ = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": imds.url}
    sources = machine_sources(environ, NoticesConfig(), tmp_path / "notice")
    assert [(source.name, source.foretells) for source in sources] == [
        ("spot", True),
        ("rebalance", True),
        ("metaflow", True),
    ]
    assert sources[0].poll() is None
    assert sources[1].poll() is None


@given(st.integers(0, 4_000_000_000), st.integers(-14, 14))
def test_a_time_is_the_same_in_every_zone(unix: int, hours: int) -> None:
    assert iso_to_unix(utc(unix)) == iso_to_unix(utc(unix).removesuffix("Z")) == unix  # without a zone it is UTC
    there = datetime.fromtimestamp(unix, timezone(timedelta(hours=hours)))
    assert iso_to_unix(there.isoformat()) == unix


@given(st.one_of(st.text(), st.none(), st.integers(), st.lists(st.text())))
def test_what_is_no_time_raises_nothing(text: object) -> None:
    iso_to_unix(text)


def firmware(sysfs: Path, **files: str) -> Path:
    folder = sysfs / "devices/virtual/dmi/id"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")
    return sysfs


@pytest.mark.parametrize(
    ("files", "ec2"),
    [
        ({"sys_vendor": "Amazon EC2", "board_vendor": "Amazon EC2"}, True),
        ({"sys_vendor": "Xen", "bios_vendor": "Xen", "board_vendor": "amazon"}, True),
        ({"sys_vendor": "Google", "board_vendor": "Google"}, False),
        ({}, False),
    ],
)
def test_an_instance_of_ec2_is_known_by_its_firmware(files: dict[str, str], ec2: bool, tmp_path: Path) -> None:
    assert is_on_ec2(firmware(tmp_path, **files)) == ec2
    assert may_have_metadata({}, tmp_path) == ec2


def test_firmware_that_cannot_be_read_is_nobodys(tmp_path: Path) -> None:
    sysfs = firmware(tmp_path, board_vendor="Amazon EC2")
    (sysfs / "devices/virtual/dmi/id/sys_vendor").mkdir()  # root may read any file, but not a folder as a file
    assert is_on_ec2(sysfs)


def test_elsewhere_nothing_is_asked_unless_the_environment_says_where(tmp_path: Path, imds: ImdsStandIn) -> None:
    assert poll_machine_sources({}, tmp_path) == []
    assert describe_statuses([]) == "no notice source: this is no EC2 instance"
    found = poll_machine_sources({"AWS_EC2_METADATA_SERVICE_ENDPOINT": imds.url}, tmp_path)
    assert describe_statuses(found) == "notices of this machine's end come from spot, rebalance"


def test_a_service_that_does_not_answer_is_told_with_what_may_help() -> None:
    found = [
        SourceStatus("spot", True, False, "no answer for 2.5 s"),
        SourceStatus("metaflow", True, False, "not there"),
    ]
    assert describe_statuses(found) == (
        "no notice source: no answer for 2.5 s; "
        "a pod needs --http-put-response-hop-limit 2 in its instance's metadata options"
    )


def test_before_a_run_it_is_told_where_the_gang_is_here(imds: ImdsStandIn) -> None:
    local = RunConfig.model_validate({"root": "/x"})
    environ = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": imds.url}
    assert notice_line(local, environ) == "convoy: notices of this machine's end come from spot, rebalance"
    nobody = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1"}
    assert notice_line(local, nobody).startswith("convoy: no notice source: ")
    assert notice_line(local, {}) is None or is_on_ec2()
    cluster = local.cluster.model_copy(update={"backend": "kubernetes"})
    assert "each node reports" in notice_line(local.model_copy(update={"cluster": cluster}), environ)
