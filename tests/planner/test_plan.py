"""The plan of a configuration: that its figures agree with each other, and what it says of what cannot be planned."""

from pathlib import Path
from typing import Any

import pytest

from convoy.catalog.instances import instance
from convoy.config.loader import configs_folder, read_overrides, read_run, resolve
from convoy.config.run import RunConfig
from convoy.display.formatting import gib
from convoy.planner.config_keys import overrides_text
from convoy.planner.cost.failures import RestartCost, SaveCost
from convoy.planner.measurements import Measurements
from convoy.planner.plan import plan
from convoy.planner.plan_schema import Plan
from convoy.planner.workload import rented_machine

TYPES = ("fp32", "bf16")
PRESETS = sorted((configs_folder() / "train").glob("*-p*.yaml"))


def preset(name: str, words: str = "") -> RunConfig:
    text = (configs_folder() / "train" / f"{name}.yaml").read_text()
    return resolve(read_run(text), read_overrides(words))


def planned(name: str, words: str = "", **given: Any) -> Plan:
    return plan(preset(name, words), Measurements(**given))


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_a_preset_is_planned_whole_and_its_parts_add_up(path: Path) -> None:
    found = planned(path.stem)
    assert found.missing == ()
    assert found.memory is not None
    assert sum(found.memory.parts.values()) == found.memory.peak_bytes
    assert found.memory.peak_bytes + found.memory.margin_bytes == found.memory.capacity_bytes
    assert found.memory.capacity_bytes + found.memory.fixed_bytes == found.memory.nominal_bytes
    assert found.step is not None
    assert found.batch is not None
    assert sum(found.step.parts.values()) == pytest.approx(found.step.seconds)
    assert found.step.tokens_per_second * found.step.seconds == pytest.approx(found.batch.tokens_per_step)
    assert 0 < found.step.mfu <= found.step.hfu < 0.8
    assert found.budget is not None
    assert found.budget.spot is not None
    for market in found.budget.markets:
        assert sum(market.parts.values()) == pytest.approx(market.seconds)
        if market.cost is not None:
            paid = [*market.cost.machines.values(), *market.cost.services.values()]
            assert sum(round(100 * usd) for usd in paid) == round(100 * market.cost.usd)


def test_it_is_read_back_as_it_was_written() -> None:
    found = planned("gpt-7b-p4d")
    assert Plan.model_validate_json(found.model_dump_json()) == found
    assert found.schema_version == 1


@pytest.mark.parametrize(
    ("name", "words", "fits", "reliable"),
    [
        ("gpt-175b-p4d", "cluster.nodes=16 train.micro_batch=1 parallel.wrap=block", False, False),
        ("gpt-175b-p4d", "cluster.nodes=16 train.micro_batch=1 parallel.wrap=linear", True, False),
        ("custom-30b-p4d", "cluster.nodes=2 train.micro_batch=1", True, False),
        (
            "gpt-7b-p4d",
            "cluster.nodes=1 parallel.strategy=fsdp parallel.shard_size=null train.micro_batch=1",
            True,
            True,
        ),
        ("gpt-7b-p4d", "cluster.nodes=1 train.activation_checkpointing=full", True, True),
    ],
)
def test_what_fits_and_what_is_recommended(name: str, words: str, fits: bool, reliable: bool) -> None:
    found = planned(name, words)
    assert found.memory is not None
    assert (found.memory.fits, found.memory.reliable, found.fits_reliably) == (fits, reliable, reliable)
    assert [limit.what for limit in found.limits][:1] == ([] if reliable else ["memory"]) or reliable


def test_what_does_not_fit_is_told_what_would() -> None:
    found = planned("gpt-175b-p4d", "cluster.nodes=24 train.micro_batch=1 parallel.wrap=block")
    assert found.limits[0].what == "memory"
    assert {"parallel.wrap": "linear"} in [change.keys for change in found.changes]
    assert all(change.memory_share <= 0.9 for change in found.changes)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llama-13b-p4d", "train.micro_batch=1"),
        ("gpt-7b-p5", "parallel.strategy=ddp train.activation_checkpointing=full"),
        ("gpt-175b-p5", "train.micro_batch=1 train.compile=false"),
    ],
)
def test_a_change_does_what_it_says(name: str, words: str) -> None:
    before = planned(name, words)
    assert before.step is not None
    assert before.changes
    ranked = [(change.numerics, change.seconds) for change in before.changes]
    assert ranked == sorted(ranked)
    assert ranked[-1][1] < 0.99 * before.step.seconds or not (before.memory and before.memory.reliable)
    after = planned(name, f"{words} {overrides_text(before.changes[0].keys)}")
    assert after.step is not None
    assert after.memory is not None
    assert after.step.seconds == pytest.approx(before.changes[0].seconds)
    assert after.configured_market is not None
    assert after.configured_market.cost is not None
    assert before.changes[0].run_seconds == pytest.approx(after.configured_market.seconds)
    assert before.changes[0].usd == pytest.approx(after.configured_market.cost.usd)
    assert after.memory.share == pytest.approx(before.changes[0].memory_share)


def test_what_changes_the_results_is_said_to_and_comes_last() -> None:
    """Reductions in bf16 are the fastest change here, and another run."""
    found = planned("llama-13b-p4d", "train.micro_batch=1")
    assert found.step is not None
    rounded = found.changes[-1]
    assert rounded.keys == {"train.reduce_dtype": "bf16"}
    assert "rounded to bf16" in rounded.numerics
    assert rounded.numerics in rounded.text
    assert all(not change.numerics for change in found.changes[:-1])
    assert any(rounded.seconds < change.seconds for change in found.changes[:-1])


def test_a_pass_that_is_too_short_for_the_network_is_said_to_be() -> None:
    found = planned("llama-13b-p4d", "train.micro_batch=1 data.sequence_length=2048")
    assert found.break_even is not None
    assert found.batch is not None
    assert found.batch.tokens_per_pass == 2048 < found.break_even.tokens_per_pass
    assert "a pass has 2,048 tokens of a rank" in next(limit.text for limit in found.limits if limit.what == "network")


def test_the_best_interval_costs_least() -> None:
    saves = planned("gpt-7b-p4d", "checkpoint.every_steps=40").saves
    assert saves is not None
    assert saves.best_every_steps is not None
    assert saves.best_overhead <= saves.overhead
    assert saves.usd_over_best is not None
    assert saves.usd_over_best >= 0
    assert saves.seconds_over_best is not None
    assert saves.seconds_over_best > 0
    best = planned("gpt-7b-p4d", f"checkpoint.every_steps={saves.best_every_steps}").saves
    assert best is not None
    assert best.overhead == saves.best_overhead
    assert (best.seconds_over_best, best.usd_over_best) == (0.0, 0.0)


def test_what_was_measured_takes_the_place_of_what_is_assumed() -> None:
    given: dict[str, Any] = {
        "saving": SaveCost(5.0, 60.0),
        "restart": RestartCost(120.0, 300.0),
        "node_bytes_per_second": 2e9,
    }
    found, assumed = planned("gpt-7b-p4d", **given), planned("gpt-7b-p4d")
    assert found.saves is not None
    assert (found.saves.stall_seconds, found.saves.durable_seconds, found.saves.restart_seconds) == (5.0, 60.0, 120.0)
    said = [
        word for word in ("a save stops", "a restart takes", "another machine is there") if word in str(found.assumed)
    ]
    assert said == []
    assert len(found.assumed) == 3 < len(assumed.assumed)
    assert found.step is not None
    assert found.step.save_stall_seconds == pytest.approx(5.0 / 115)


def test_of_a_model_of_one_s_own_nothing_is_planned() -> None:
    config = preset("gpt-7b-p4d", "'model={build: a.b:c, vocab_size: 50257, max_sequence_length: 2048}'")
    found = plan(config)
    assert {each.part for each in found.missing} == {"memory", "host_memory", "step", "break_even", "saves", "budget"}
    assert found.missing[0].why == "model.build = a.b:c: nothing is known of it"
    assert (found.memory, found.step, found.budget, found.changes) == (None, None, None, ())


def test_of_another_engine_nothing_is_planned() -> None:
    found = plan(preset("gpt-7b-p4d", "engine=deepspeed parallel.strategy=fsdp parallel.shard_size=null"))
    assert found.missing[0].why == "engine = deepspeed: plans are of Convoy's own engine"
    assert (found.memory, found.step) == (None, None)


def test_on_this_host_without_a_gpu_there_is_memory_and_no_time() -> None:
    found = plan(RunConfig(), Measurements(host_bytes=8 * 2**30))
    assert found.memory is not None
    assert found.memory.nominal_bytes == 4 * 2**30
    assert found.memory.fits
    missing = {each.part: each.why for each in found.missing}
    assert missing["step"] == "cpu: its fp32 peak is not in the catalog, so no time can be planned"
    assert set(missing) == {"step", "break_even", "saves", "budget"}


def test_on_machines_of_one_s_own_saves_are_planned_and_nothing_is_bought() -> None:
    machine = rented_machine(instance("g5.xlarge"), 1)
    found = plan(preset("default", "cluster.nodes=2"), machine=machine)
    assert found.step is not None
    assert found.saves is not None
    assert found.parameters is not None
    # The tied head is written beside the embedding: 4 bytes for each of 4,096 × 192 weights.
    assert found.saves.state_bytes == 12 * found.parameters + 4 * 4096 * 192
    assert (found.saves.mtbf_seconds, found.saves.best_interval_seconds) == (None, None)
    assert [each.why for each in found.missing] == ["cluster.instance_type: none is named"]
    assert "nothing interrupts a gang on machines of one's own" in found.assumed


def test_with_states_in_host_memory_there_is_memory_and_no_time() -> None:
    found = planned("gpt-7b-p4d", "parallel.strategy=fsdp parallel.shard_size=null parallel.cpu_offload=true")
    assert found.memory is not None
    assert found.memory.parts["optimizer"] == 0
    assert found.host_memory is not None
    assert found.host_memory.states_bytes > 0
    assert {"step": "cpu_offload: its time is not planned"}.items() <= {m.part: m.why for m in found.missing}.items()


def test_ranks_that_cannot_be_divided_are_refused() -> None:
    with pytest.raises(ValueError, match=r"parallel\.shard_size = 5: must divide the number of ranks, 32"):
        planned("gpt-7b-p4d", "parallel.shard_size=5")


def test_auto_is_bf16_on_gpus_and_on_a_cpu_both_types_are_shown_until_it_is_measured() -> None:
    assert planned("gpt-7b-p4d") == planned("gpt-7b-p4d", "train.param_dtype=bf16")
    host = {"host_bytes": 2.0**36}
    auto, fp32, bf16 = (planned("default", words, **host) for words in ("", *(f"train.param_dtype={d}" for d in TYPES)))
    (line,) = [text for text in auto.assumed if text.startswith("train.param_dtype = auto: planned as fp32")]
    assert auto.memory == fp32.memory
    assert bf16.memory is not None
    assert line.endswith(f"in bf16 a rank needs {gib(bf16.memory.peak_bytes)}")


def test_what_is_computed_again_is_in_hfu_alone() -> None:
    """All of forward again would be a third more; a block's last product and the head are not computed again."""
    none, full = (planned("gpt-7b-p5", f"train.activation_checkpointing={how}").step for how in ("none", "full"))
    assert none is not None
    assert full is not None
    assert none.hfu == none.mfu
    assert 1.22 < full.hfu / full.mfu < 1.25
