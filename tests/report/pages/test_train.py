"""The pages say what happened, in plain words, and say what is not known."""

from convoy.display.page import Callout, Chart, Code, Heading, Page, Progress, Table, Text, Timeline, Value
from convoy.job.events.registry import Environment, Event, GenerationEnded, NetworkProof, Stopping
from convoy.report.fold import fold
from convoy.report.pages.train import final_page, live_page, script_page
from tests.report.synthetic import (
    CONFIG,
    LOG_TAIL,
    Log,
    blocks,
    failed_job,
    finished_job,
    resumed_job,
    running_job,
    value,
)

PLACES = {"Model": "s3://bucket/jobs/a/model", "Checkpoints": "s3://bucket/jobs/a/commits"}


def _live(events: list[Event]) -> Page:
    return live_page(fold(events, target_steps=170), CONFIG)


def _final(events: list[Event]) -> Page:
    return final_page(fold(events, target_steps=170), CONFIG, PLACES)


def test_a_running_job_shows_progress_curves_step_time_and_events() -> None:
    page = _live(running_job())
    (progress,) = blocks(page, Progress)
    assert (progress.done, progress.total) == (90, 170)
    assert progress.detail.endswith(" left")
    assert [c.title for c in blocks(page, Chart)] == ["Loss", "Throughput", "Median of each part"]
    assert blocks(page, Timeline)[0].entries[0].text == "Checkpoint at step 85: 43.2 MB in 200 ms"
    assert not blocks(page, Callout)
    assert blocks(page, Text)[0].text.endswith("AMD EPYC 7R13 · memory peak 813 MB · as of 08:00:39 UTC")
    assert value(page, "Last checkpoint") == Value("Last checkpoint", "step 85", "43.2 MB, not verified yet")


def test_a_job_that_has_not_begun_has_a_page() -> None:
    page = _live([])
    assert page.title == "tiny"
    assert value(page, "Training loss") == Value("Training loss", "—", "no step yet")
    assert value(page, "Bits per byte").subtitle == "not evaluated yet"
    assert not blocks(page, Chart)


def test_a_job_in_its_warm_up_says_that_nothing_is_measured_yet() -> None:
    log = Log(events=running_job(3))
    page = _live(log.events)
    assert value(page, "Throughput").value == "—"
    assert Text("Not measured yet: the first 5 steps are warm-up.") in page.blocks


def test_the_final_page_has_every_headline_number_with_its_spread() -> None:
    page = _final(finished_job())
    assert value(page, "Bits per byte") == Value("Bits per byte", "2.03", "from 3.63, ratio 0.56", "good")
    assert value(page, "Validation loss").value == "4.68"
    assert value(page, "Throughput").value == "10.2k tok/s"
    assert value(page, "Throughput").subtitle.endswith("n = 165")
    assert value(page, "Share of matmul rate") == Value(
        "Share of matmul rate", "40.9 %", "model FLOP/s over 0.250 TFLOP/s, a plain matmul here"
    )
    assert value(page, "Memory peak") == Value("Memory peak", "813 MB", "resident, highest of 2 ranks")
    assert value(page, "Steps") == Value("Steps", "170", "of 170, none skipped")
    assert value(page, "Last checkpoint") == Value(
        "Last checkpoint", "step 170", "43.2 MB, not verified yet, 1 older one kept"
    )


def test_an_unknown_peak_is_said_and_no_stand_in_is_shown() -> None:
    events = [e.model_copy(update={"matmul_tflops": None}) if isinstance(e, Environment) else e for e in finished_job()]
    assert value(_final(events), "MFU") == Value("MFU", "—", "not shown: this device's peak is not known")


def test_the_final_page_keeps_text_places_configuration_and_versions() -> None:
    page = _final(finished_job())
    codes = [c.text for c in blocks(page, Code)]
    assert any(text.startswith("def main(x) -> None:\n    for item") for text in codes)
    assert any("global_batch: 8" in text for text in codes)
    cells = [cell for table in blocks(page, Table) for row in table.rows for cell in row]
    assert {"s3://bucket/jobs/a/model", "2.13.0", "AMD EPYC 7R13"} <= set(cells)
    assert "Generations" not in [h.text for h in blocks(page, Heading)]


def test_a_failure_stands_first_with_node_rank_and_last_lines() -> None:
    for page in (_live(failed_job()), _final(failed_job())):
        title, facts, callout, _, tail = page.blocks[:5]
        assert title == Heading("tiny", level=1)
        assert isinstance(facts, Text)
        assert facts.text.startswith("Failed")
        assert isinstance(callout, Callout)
        assert callout.title == "Rank 1 on node 1 failed at step 120"
        assert callout.text == "Killed by SIGKILL. MemoryError: <no room> for `x`. The newest checkpoint holds step 85."
        assert tail == Code(LOG_TAIL)


def test_a_failed_script_names_its_step_if_it_reported_one_and_no_checkpoint_of_convoys() -> None:
    log = Log()
    log.start()
    log.fail(0)
    (before,) = blocks(script_page(fold(log.events), "train.py"), Callout)
    assert before.title.endswith("failed")
    (after,) = blocks(script_page(fold(failed_job()), "train.py"), Callout)
    assert after == Callout("Rank 1 on node 1 failed at step 120", "Killed by SIGKILL. MemoryError: <no room> for `x`.")


def test_the_page_of_a_script_says_what_carried_its_traffic() -> None:
    log = Log()
    log.start(world_size=2)
    proofs = ("rdma+gdr", "efa", None), ("tcp", "socket", "NCCL_NET is set to Socket")
    for rank, (verdict, carrier, cause) in enumerate(proofs):
        log.add(NetworkProof.model_validate({"verdict": verdict, "carrier": carrier, "cause": cause}), rank=rank)
    page = script_page(fold(log.events), "train.py")
    facts = "EFA with GPUDirect, 1 of 2 ranks (NCCL's log) · TCP, 1 of 2 ranks (NCCL's log)"
    assert blocks(page, Text)[0].text.endswith(facts)
    assert [each.title for each in blocks(page, Callout)] == ["1 of 2 ranks use TCP between hosts"]


def test_a_stop_is_a_warning_with_its_reason() -> None:
    log = Log(events=running_job(10))
    log.add(Stopping(step=10, reason="max_cost_usd"), rank=0)
    log.add(GenerationEnded(outcome="stopped", step=10), node=0)
    (callout,) = blocks(_live(log.events), Callout)
    assert (callout.title, callout.tone) == ("Stopped at step 10", "warning")
    assert callout.text.startswith("The limit budget.max_cost_usd was reached. Its state is saved: start the job again")


def test_a_resumed_job_lists_its_generations_and_why_each_began() -> None:
    page = _final(resumed_job())
    table = next(t for t in blocks(page, Table) if "Why" in t.headers)
    assert table.rows[1][2:5] == (
        "step 85 of generation 0",
        "rank 1 on node 1 was killed by SIGKILL",
        "finished, step 170",
    )


def test_a_job_that_changes_its_engine_names_each_generation_s() -> None:
    zero = "DeepSpeed ZeRO-2 0.19.8"

    def trained_by(engines: dict[int, str]) -> Page:
        return _final(
            [
                e.model_copy(update={"engine": engines.get(e.generation, "")}) if isinstance(e, Environment) else e
                for e in resumed_job()
            ]
        )

    page = trained_by({1: zero})
    table = next(t for t in blocks(page, Table) if "Why" in t.headers)
    assert [row[table.headers.index("Engine")] for row in table.rows] == ["Convoy", zero]
    assert f"engine: {zero}" in blocks(page, Text)[0].text
    back = trained_by({0: zero})
    assert "engine:" not in blocks(back, Text)[0].text
    assert zero in str(next(t for t in blocks(back, Table) if "Why" in t.headers).rows[0])


def test_a_long_history_is_cut_and_the_cut_is_said() -> None:
    log = Log()
    log.start()
    log.steps(1, 100, every=1)
    page = _live(log.events)
    assert len(blocks(page, Timeline)[0].entries) == 40
    assert any(t.text.endswith("earlier ones are in the event log.") for t in blocks(page, Text))
