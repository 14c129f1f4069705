"""The pages of a job: of training while it runs and when it has ended, well or not, and of a user's own script."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from convoy.display import formatting
from convoy.display.page import Block, Heading, Page, Text, Tone, Value, Values, fold_sections
from convoy.report.analysis.outcome import state_word
from convoy.report.pages import cost_sections, hardware_sections, incident_sections, sections
from convoy.report.train_report import TrainReport

if TYPE_CHECKING:
    from convoy.planner.plan_schema import Plan


def live_page(report: TrainReport, config: Mapping[str, Any], plan: "Plan | None" = None) -> Page:
    """What a person watching the job wants to see; a failure comes first.

    config: the resolved configuration as plain data. plan: of the job, where there is one.
    """
    return Page(
        _model_name(report, config),
        (
            *_top_blocks(report, config),
            *sections.progress(report),
            Values((_loss(report), *_bits_per_byte(report), _throughput(report), _last_checkpoint(report))),
            *incident_sections.incidents(report),
            *sections.tiers(report),
            *sections.curves(report),
            *sections.step_breakdown(report),
            *hardware_sections.hardware_use(report),
            *_predicted_blocks(report, plan),
            *sections.samples(report),
            *sections.events(report),
        ),
    )


def final_page(
    report: TrainReport, config: Mapping[str, Any], places: Mapping[str, str] | None = None, plan: "Plan | None" = None
) -> Page:
    """Everything worth keeping of a job that has ended.

    places: what is kept where, e.g. {"Model": "/jobs/a/model"}. plan: of the job, where there is one.
    """
    return Page(
        _model_name(report, config),
        (
            *_top_blocks(report, config),
            Values(
                (
                    _loss(report),
                    *_bits_per_byte(report),
                    _throughput(report),
                    _utilisation(report),
                    _memory(report),
                    incident_sections.goodput_value(report),
                    cost_sections.cost_value(report),
                    _steps(report),
                    _last_checkpoint(report),
                )
            ),
            *incident_sections.incidents(report),
            *sections.tiers(report),
            *sections.curves(report),
            *sections.optimizer_curves(report),
            *sections.samples(report),
            *fold_sections(sections.step_breakdown(report, detailed=True)),
            *fold_sections(hardware_sections.hardware_use(report, detailed=True)),
            *fold_sections(_predicted_blocks(report, plan)),
            *fold_sections(incident_sections.goodput(report)),
            *fold_sections(cost_sections.cost(report)),
            *fold_sections(sections.ranks_section(report)),
            *fold_sections(sections.startup(report)),
            *fold_sections(sections.generations_and_checkpoints(report)),
            *fold_sections(sections.events(report)),
            *sections.places(places or {}),
            *fold_sections(sections.hardware_and_config(report, config)),
        ),
    )


def script_page(report: TrainReport, name: str) -> Page:
    """The page while the script runs, and when it has ended. name: of the script."""
    state = state_word(report).capitalize()
    facts = [
        state,
        *sections.gang_facts(report),
        *sections.network_facts(report.network),
        incident_sections.nodes_without_notices(report),
    ]
    return Page(
        name,
        (
            Heading(name, level=1),
            Text(" · ".join(filter(None, facts)), quiet=True),
            *sections.outcome_callouts(report, of_script=True),
            *sections.network_callouts(report.network),
            Values((_script_step(report), _generations(report))),
            *incident_sections.incidents(report),
            *hardware_sections.hardware_use(report, detailed=True),
            *sections.events(report),
        ),
    )


def _predicted_blocks(report: TrainReport, plan: "Plan | None") -> tuple[Block, ...]:
    if plan is None:
        return ()
    from convoy.report.pages.predicted_sections import predictions  # an agent imports this module before its gang forms

    return predictions(report, plan)


def _model_name(report: TrainReport, config: Mapping[str, Any]) -> str:
    return report.model.name if report.model else str(config.get("model", {}).get("name", "Training"))


def _top_blocks(report: TrainReport, config: Mapping[str, Any]) -> tuple[Block, ...]:
    facts = [state_word(report).capitalize()]
    if report.model:
        facts.append(f"{formatting.count(report.model.parameters)} parameters")
    if report.generations and (engine := report.generations[-1].engine):
        facts.append(f"engine: {engine}")
    facts += sections.gang_facts(report)
    if report.hardware:
        facts.append(report.hardware.device)
    facts += sections.network_facts(report.network)
    if report.outcome.state == "running" and report.memory_peak_bytes is not None:
        facts.append(f"memory peak {formatting.size(report.memory_peak_bytes)}")
    if report.outcome.state == "running" and report.last_event is not None:
        facts.append(f"as of {formatting.clock(report.last_event)}")  # a card outlives whoever draws it
    if deaf := incident_sections.nodes_without_notices(report):
        facts.append(deaf)
    return (
        Heading(_model_name(report, config), level=1),
        Text(" · ".join(facts), quiet=True),
        *sections.outcome_callouts(report),
        *sections.failed_saves(report),
        *incident_sections.trouble_callouts(report),
        *sections.network_callouts(report.network),
    )


def _loss(report: TrainReport) -> Value:
    last = report.validations[-1] if report.validations else None
    if last is not None and last.step >= report.step:
        first = report.validations[0]
        since = f"step {last.step:,}" if first is last else f"from {formatting.significant(first.loss)}"
        return Value("Validation loss", formatting.significant(last.loss), f"{sections.loss_unit(report)}, {since}")
    if report.steps:
        newest = report.steps[-1]
        return Value(
            "Training loss", formatting.significant(newest.loss), f"{sections.loss_unit(report)}, step {newest.step:,}"
        )
    return Value("Training loss", "—", "no step yet")


def _bits_per_byte(report: TrainReport) -> Iterator[Value]:
    if report.unit == "tokens":
        yield _bits_per_byte_value(report)


def _bits_per_byte_value(report: TrainReport) -> Value:
    measured = [v for v in report.validations if v.bits_per_byte is not None]
    if not measured:
        why = "these tokens have no bytes" if report.validations else "not evaluated yet"
        return Value("Bits per byte", "—", why)
    first, last = measured[0], measured[-1]
    before, after = first.bits_per_byte or 0.0, last.bits_per_byte or 0.0
    if first is last:
        return Value("Bits per byte", formatting.significant(after), f"validation, step {last.step:,}")
    ratio = f", ratio {formatting.significant(after / before, 2)}" if before else ""
    tone: Tone = "good" if after < before else "warning"
    return Value("Bits per byte", formatting.significant(after), f"from {formatting.significant(before)}{ratio}", tone)


def _throughput(report: TrainReport) -> Value:
    rate = report.tokens_per_second
    if rate is None:
        return Value("Throughput", "—", f"measured after {report.warmup_steps} steps of warm-up")
    form = formatting.rate_of(report.unit)
    return Value("Throughput", form(rate.median), formatting.quartiles(rate, form))


def _utilisation(report: TrainReport) -> Value:
    if report.mfu is not None:
        return Value("MFU", formatting.percent(report.mfu), "model FLOP/s over the dense peak")
    if report.matmul_share is not None and report.hardware:
        rate = report.hardware.matmul_tflops
        peak = "" if rate is None else formatting.in_unit("TFLOP/s")(rate.median)
        formula = f"model FLOP/s over {peak}, a plain matmul here"
        return Value("Share of matmul rate", formatting.percent(report.matmul_share), formula)
    return Value("MFU", "—", "not shown: this device's peak is not known")


def _memory(report: TrainReport) -> Value:
    if report.memory_peak_bytes is None:
        return Value("Memory peak", "—", "not reported yet")
    measured = [r for r in report.ranks if r.memory_peak_bytes is not None]
    where = "GPU" if measured[0].memory_device == "cuda" else "resident"
    return Value(
        "Memory peak",
        formatting.size(report.memory_peak_bytes),
        f"{where}, highest of {formatting.plural(len(measured), 'rank')}",
    )


def _steps(report: TrainReport) -> Value:
    of = "" if report.target_steps is None else f"of {report.target_steps:,}"
    if report.skipped_steps:
        return Value("Steps", f"{report.step:,}", f"{of}, {report.skipped_steps:,} skipped: not finite", "warning")
    return Value("Steps", f"{report.step:,}", f"{of}, none skipped" if of else "none skipped")


def _last_checkpoint(report: TrainReport) -> Value:
    """The newest checkpoint, and how sure it is; then what did not go as it should."""
    troubles = sections.save_troubles(report)
    tone: Tone = "warning" if troubles else "plain"
    if not report.checkpoints:
        if report.outcome.state == "running" and not troubles:
            return Value("Last checkpoint", "none", "not saved yet")
        return Value("Last checkpoint", "none", ", ".join(["none saved", *troubles]), "warning")
    newest = report.checkpoints[-1]
    where = [f"on {newest.tier}"] if len(report.tiers) > 1 and newest.tier != report.tiers[0].uri else []
    facts = [formatting.size(newest.bytes), *where, "verified" if newest.verified else "not verified yet"]
    others = len(report.checkpoints) - 1
    older = [f"{formatting.plural(others, 'older one')} kept"] if others else []
    return Value("Last checkpoint", f"step {newest.step:,}", ", ".join(facts + older + troubles), tone)


def _script_step(report: TrainReport) -> Value:
    if not report.step:
        return Value("Step", "—", "the script has reported none")
    return Value("Step", f"{report.step:,}", "the last one that the script reported")


def _generations(report: TrainReport) -> Value:
    count = len(report.generations)
    return Value(
        "Generations",
        f"{count:,}",
        "never restarted" if count < 2 else f"restarted {formatting.plural(count - 1, 'time')}",
    )
