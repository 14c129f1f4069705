"""What the log tells of checkpoints: where they are, how far each tier is behind, and what went wrong."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.display.page import Callout, Heading, Table, Text, Value
from convoy.job.events.registry import (
    CheckpointAlert,
    CheckpointCopied,
    CheckpointDamaged,
    CheckpointFailed,
    CheckpointMisread,
    CheckpointSaved,
    CheckpointSkipped,
    CheckpointsPruned,
    CheckpointVerified,
    Event,
    GenerationStarted,
    Restored,
)
from convoy.report.fold import fold
from convoy.report.pages.train import final_page, live_page
from convoy.report.train_report import Checkpoint, SaveCounts, TrainReport
from tests.campaign import examples
from tests.report.synthetic import CONFIG, Log, blocks, value

pytestmark = pytest.mark.campaign

FSX, S3 = "/fsx/job", "s3://bucket/job"


class Saves(Log):
    """A log whose gang of two ranks knows two tiers; each event a second after the one before."""

    def formed(self, generation: int = 1, parent: tuple[int, int] | None = None) -> "Saves":
        self.generation = generation
        origin: dict[str, Any] = {} if parent is None else {"parent_generation": parent[0], "parent_step": parent[1]}
        return self.then(GenerationStarted(nodes=1, world_size=2, tiers=[FSX, S3], **origin))

    def then(self, event: Event, rank: int = 0) -> "Saves":
        self.wait(1)
        self.add(event, rank=rank, node=0)
        return self

    def saved(self, step: int, tier: str = FSX) -> "Saves":
        return self.then(
            CheckpointSaved(
                step=step, attempt=f"a{step}", tier=tier, bytes=2_000_000, seconds=0.004, committed_seconds=0.6
            )
        )

    def copied(self, step: int, error: str | None = None) -> "Saves":
        made = self.generation
        return self.then(CheckpointCopied(from_generation=made, step=step, tier=S3, bytes=9, seconds=2.0, error=error))

    def read_back(self, step: int, part: int, error: str | None = None, tier: str = FSX) -> "Saves":
        event = CheckpointVerified(
            from_generation=self.generation, step=step, tier=tier, part=part, parts=2, seconds=0.1, error=error
        )
        return self.then(event, rank=1 - part)

    def pruned(self, *commits: tuple[int, int], tier: str = FSX) -> "Saves":
        return self.then(CheckpointsPruned(tier=tier, commits=list(commits), bytes=5))

    def damaged(self, step: int, generation: int = 1, tier: str = FSX) -> "Saves":
        return self.then(CheckpointDamaged(from_generation=generation, step=step, tier=tier, error="chunk 3 differs"))

    def failed(self, step: int, retried_on: str | None = None) -> "Saves":
        return self.then(CheckpointFailed(step=step, error="no space left", tier=FSX, retried_on=retried_on))

    @property
    def report(self) -> TrainReport:
        return fold(self.events, target_steps=100)


def steps(report: TrainReport) -> list[int]:
    return [c.step for c in report.checkpoints]


def by_step(report: TrainReport) -> dict[int, Checkpoint]:
    return {c.step: c for c in report.checkpoints}


def saved(report: TrainReport) -> Value:
    return value(live_page(report, CONFIG), "Last checkpoint")


def _blocks(report: TrainReport, kind: type) -> list[Any]:
    return blocks(live_page(report, CONFIG), kind)


def test_a_checkpoint_is_verified_when_every_part_was_read_back_whole() -> None:
    log = Saves().formed().saved(10).saved(20).read_back(10, 0).read_back(20, 0).read_back(20, 0)
    assert [c.verified for c in log.report.checkpoints] == [False, False]
    assert saved(log.report).subtitle == "2.00 MB, not verified yet, 1 older one kept"

    log.read_back(20, 1, error="timed out")
    assert [c.verified for c in log.report.checkpoints] == [False, False]
    assert log.report.timeline[-1].text == "Part 1 of the checkpoint at step 20 was not read back: timed out"

    log.read_back(10, 1).read_back(20, 1)

    assert [c.verified for c in log.report.checkpoints] == [True, True]
    assert saved(log.report) == Value("Last checkpoint", "step 20", "2.00 MB, verified, 1 older one kept", "plain")


def test_a_host_that_reads_wrongly_is_named_and_the_checkpoint_stays() -> None:
    log = Saves().formed().saved(10).read_back(10, 0).read_back(10, 1)
    wrong = {"from_generation": 1, "step": 10, "tier": FSX, "part": 1, "host": "node-7"}
    log.then(CheckpointMisread(**wrong, error="node-7 reads part 1 otherwise than node-8"))
    last = log.report.timeline[-1]
    assert last.text == "Host node-7 is not to be trusted with checkpoints: node-7 reads part 1 otherwise than node-8"
    assert (last.tone, steps(log.report)) == ("bad", [10])


def test_what_was_read_back_counts_only_where_the_checkpoint_still_is() -> None:
    log = Saves().formed().saved(10).copied(10).read_back(10, 0).read_back(10, 1).pruned((1, 10))
    (kept,) = log.report.checkpoints
    assert (kept.tiers, kept.verified) == ((S3,), False)


def test_copies_count_and_a_tier_that_lags_says_by_how_much() -> None:
    log = Saves().formed().saved(10).copied(10).saved(20).saved(30)

    fsx, s3 = log.report.tiers

    assert by_step(log.report)[10].tiers == (FSX, S3)
    assert (fsx.uri, fsx.newest_step, fsx.behind_steps, fsx.behind_seconds, fsx.error) == (FSX, 30, 0, 0.0, None)
    assert (s3.uri, s3.newest_step, s3.behind_steps, s3.error) == (S3, 10, 20, None)
    assert s3.behind_seconds == pytest.approx(1.0)  # the commit of step 20 was a second before the last event

    log.copied(30, error="AccessDenied")
    assert log.report.tiers[1].error == "AccessDenied"
    log.copied(30)
    assert log.report.tiers[1] == s3.model_copy(update={"newest_step": 30, "behind_steps": 0, "behind_seconds": 0.0})


def test_a_tier_without_any_checkpoint_is_behind_by_all_steps() -> None:
    report = Saves().formed().saved(10).saved(20).report
    assert (report.tiers[1].newest_step, report.tiers[1].behind_steps) == (None, 20)
    rows = next(t.rows for t in _blocks(report, Table) if t.headers[0] == "Tier")
    assert rows == ((FSX, "20", "", ""), (S3, "none", "20 steps, 1.0 s", ""))


def test_the_card_says_where_checkpoints_go_while_the_first_tier_takes_none() -> None:
    log = Saves().formed().saved(10)
    assert not [t for t in _blocks(log.report, Text) if "tried again" in t.text]
    log.failed(20, retried_on=S3).saved(20, tier=S3)
    (said,) = [t.text for t in _blocks(log.report, Text) if "tried again" in t.text]
    assert said == f"{FSX} did not take a checkpoint: they go to {S3}, and {FSX} is tried again from time to time."
    log.saved(30)
    assert not [t for t in _blocks(log.report, Text) if "tried again" in t.text]


def test_a_save_that_went_to_the_next_tier_says_so_and_the_first_one_lags() -> None:
    log = Saves().formed().saved(10).failed(20, retried_on=S3).saved(20, tier=S3)
    assert log.report.saves == SaveCounts(moved=1)
    assert [(t.newest_step, t.behind_steps, t.error) for t in log.report.tiers] == [
        (10, 10, "no space left"), (20, 0, None),
    ]  # fmt: skip
    moments = [m.text for m in log.report.timeline]
    assert f"Checkpoint at step 20 failed on {FSX}: no space left; it goes to {S3}" in moments
    told = f"2.00 MB, on {S3}, not verified yet, 1 older one kept, 1 moved to another tier"
    assert saved(log.report) == Value("Last checkpoint", "step 20", told, "warning")


def test_skipped_and_failed_saves_are_counted_apart() -> None:
    log = Saves().formed().saved(10).then(CheckpointSkipped(step=20, under_way=[15, 18])).failed(15).failed(18)
    assert log.report.saves == SaveCounts(skipped=1, given_up=2)
    assert saved(log.report).subtitle == "2.00 MB, not verified yet, 1 skipped, 2 abandoned"
    assert log.report.timeline[-1].text == "Checkpoint at step 18 abandoned: no space left"
    assert any(
        m.text == "Checkpoint at step 20 skipped: those of steps 15 and 18 were not done" for m in log.report.timeline
    )


def test_a_row_of_failures_stands_at_the_top_until_a_save_is_committed() -> None:
    log = Saves().formed().saved(10).failed(20).failed(30)
    assert log.report.alert is None
    log.then(CheckpointAlert(step=31, failures=2, newest=10, error="no space left."))
    (callout,) = _blocks(log.report, Callout)
    assert callout == Callout(
        "The last 2 checkpoints failed",
        "Everything after step 10 would be lost if the gang failed now. no space left.",
        "warning",
    )
    assert log.report.timeline[-1].text == "2 saves failed in a row; the newest checkpoint is of step 10"

    log.saved(40)

    assert log.report.alert is None
    assert not _blocks(log.report, Callout)


def test_an_alert_before_any_checkpoint_says_that_nothing_is_saved() -> None:
    log = Saves().formed().then(CheckpointAlert(step=9, failures=3, newest=None, error="EACCES"))
    (callout,) = _blocks(log.report, Callout)
    assert callout.text == "Nothing is saved yet if the gang failed now. EACCES"


def test_what_was_pruned_everywhere_or_damaged_is_no_checkpoint_any_more() -> None:
    log = Saves().formed().saved(10).copied(10).saved(20).saved(30).pruned((1, 20)).pruned((1, 10))
    assert steps(log.report) == [10, 30]
    log.pruned((1, 10), tier=S3).damaged(30)
    assert steps(log.report) == []
    assert log.report.saves.damaged == 1
    assert saved(log.report) == Value("Last checkpoint", "none", "none saved, 1 damaged", "warning")
    moments = [m.text for m in log.report.timeline]
    assert f"Checkpoint at step 30 of generation 1 is damaged on {FSX}: chunk 3 differs" in moments
    assert "Removed checkpoints at steps 20: 5 B" in moments


def test_a_generation_that_went_past_a_damaged_commit_branches_off_where_it_was_restored() -> None:
    log = Saves().formed().saved(10).saved(20)
    log.formed(2, parent=(1, 20)).damaged(20).then(Restored(from_generation=1, step=10, seconds=1.0, tier=FSX))
    log.saved(20)
    assert [(c.generation, c.step) for c in log.report.checkpoints] == [(1, 10), (2, 20)]
    assert log.report.generations[1].parent_step == 10


def test_a_commit_whose_rank_died_before_it_could_tell_is_known_by_what_started_from_it() -> None:
    log = Saves().formed().saved(10)
    log.formed(2, parent=(1, 20)).then(Restored(from_generation=1, step=20, seconds=1.0, bytes=7, tier=S3))
    assert [(c.generation, c.step, c.bytes, c.tiers) for c in log.report.checkpoints] == [
        (1, 10, 2_000_000, (FSX,)), (1, 20, 7, (S3,)),
    ]  # fmt: skip


def test_the_table_of_the_final_page_tells_what_each_save_cost() -> None:
    log = Saves().formed().saved(10).read_back(10, 0).read_back(10, 1)
    page = final_page(log.report, CONFIG)
    assert Heading("Checkpoints", folded=True) in page.blocks
    table = next(b for b in page.blocks if isinstance(b, Table) and "Verified" in b.headers)
    assert table.rows == (("10", "1", "2.00 MB", "4.00 ms", "600 ms", "yes"),)


def test_a_log_of_before_there_were_tiers_has_its_checkpoints() -> None:
    log = Saves()
    log.then(GenerationStarted(nodes=1, world_size=1)).then(CheckpointSaved(step=4, attempt="a", bytes=3, seconds=0.5))
    assert steps(log.report) == [4]
    assert log.report.tiers == ()


DOINGS = st.one_of(
    st.tuples(st.just("saved"), st.integers(1, 9)),
    st.tuples(st.just("copied"), st.integers(1, 9)),
    st.tuples(st.just("damaged"), st.integers(1, 9)),
    st.tuples(st.just("failed"), st.integers(1, 9)),
    st.tuples(st.just("pruned"), st.integers(1, 9)),
)


@given(st.lists(DOINGS, max_size=30))
@examples(50)
def test_tiers_are_never_ahead_and_only_what_is_somewhere_is_a_checkpoint(doings: list[tuple[str, int]]) -> None:
    log = Saves().formed()
    for what, step in doings:
        getattr(log, what)((1, step) if what == "pruned" else step)
    report = log.report
    assert steps(report) == sorted(set(steps(report)))
    assert all(c.tiers for c in report.checkpoints)
    newest = max(steps(report), default=0)
    for tier in report.tiers:
        assert (tier.newest_step or 0) + tier.behind_steps == newest
        missing = [c.t for c in report.checkpoints if c.step > (tier.newest_step or 0)]
        assert tier.behind_seconds == (log.t - min(missing) if missing else 0.0)
    final_page(report, CONFIG)
