"""Cases of the checkpoint and recovery suites that were never measured, with known figures."""

from typing import Any

from convoy.benchmark.results import values
from convoy.benchmark.results.case import Case
from convoy.benchmark.results.values import BEYOND, DETECTED, DURABLE, RECOVERED, RESTORE, SAVE, STALL
from convoy.config.benchmark import CampaignConfig
from tests.benchmark.results.cases import HARDWARE, a_case


def saves(**changed: Any) -> list[Case]:
    """1.2 GB over two writers: 0.6 s to save and 0.3 s to restore, so 1 and 2 GB/s for each of them."""
    shared: dict[str, Any] = {"suite": "checkpoint", "group": "checkpoint-tiny"}
    samples = {
        STALL: (0.02, 0.021, 0.019, 0.02, 0.022, 0.02),
        DURABLE: (1.5, 1.6, 1.4, 1.5, 1.5, 1.5),
        SAVE: (0.6,) * 6,
        RESTORE: (0.3,) * 6,
    }
    told = {
        values.SAVED_BYTES: 1.2e9,
        values.FIRST_STALL_SECONDS: 0.2,
        values.FIRST_SAVE_SECONDS: 0.9,
        values.PREDICTED_WRITERS: 2.0,
        **changed.pop("values", {}),
    }
    return [
        a_case("without saves", 0.5, seed=1, baseline=None, **shared),
        a_case(
            "a save in each block",
            0.52,
            seed=2,
            baseline="without saves",
            samples=samples,
            values=told,
            **shared | changed,
        ),
    ]


def a_drill(name: str, detected: tuple[float, ...], recovered: tuple[float, ...], **changed: Any) -> Case:
    """All trials as they should be, unless `changed` says otherwise."""
    n = float(len(recovered))
    told = {
        values.TRIALS: n,
        values.RECOVERED_TRIALS: n,
        values.STEPS_RECOMPUTED: 3.0,
        values.SAMPLES_LOST: 0.0,
        values.SAMPLES_REPEATED: 0.0,
        values.STATES_COMPARED: n,
        values.STATES_EQUAL: n,
        values.TARGET_DETECTED_SECONDS: 0.5,
        values.TARGET_RECOVERED_SECONDS: 8.0,
        **changed.pop("values", {}),
    }
    facts: dict[str, Any] = {
        "suite": "recovery",
        "group": "recovery",
        "baseline": None,
        "blocks": (),
        "losses": (),
        "hardware": HARDWARE.model_copy(update={"ranks": 3}),
        "samples": {DETECTED: detected, RECOVERED: recovered, BEYOND: tuple(s + 1 for s in recovered)},
        "values": told,
        "config": {"campaign": CampaignConfig(bad_day_hours=None).model_dump(mode="json")},
    }
    return a_case(name, **(facts | changed))


def faults() -> list[Case]:
    """A lost node, back after 5 s, three times; and a notice, which is seen after 0.4 s."""
    return [
        a_drill("node-kill", (0.2, 0.3, 0.25), (5.0, 4.8, 5.4)),
        a_drill("spot-notice", (0.4,), (6.0,), values={values.STEPS_RECOMPUTED: 0.0}),
    ]


def with_campaign(cases: list[Case], **setting: Any) -> list[Case]:
    """With that setting of the campaign; without bad days, unless they are set."""
    told = {"campaign": CampaignConfig(**({"bad_day_hours": None} | setting)).model_dump(mode="json")}
    return [case.model_copy(update={"config": told}) if case.suite == "recovery" else case for case in cases]


def survival() -> list[Case]:
    return [*saves(), *faults()]
