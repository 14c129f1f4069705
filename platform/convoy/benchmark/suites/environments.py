"""One variant in several environments. An environment is fixed when a process starts, so each has gangs of its own.

The gangs take turns, A B, B A, A B, …, and are started anew for each turn: two gangs alive at once would have two
models on every device and share its links. So the interval includes what differs from one start of a gang to the next,
such as where its ranks are placed and what their neighbours do: the unit that is resampled is the gang. Imports no
torch.
"""

import os
import statistics
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

from convoy.benchmark.groups import Group
from convoy.benchmark.results.case import Block, Case
from convoy.benchmark.results.collectives import PREFIX, sample_name, timings_from_values
from convoy.benchmark.results.network import NetworkResult, merge_gangs
from convoy.benchmark.results.values import (
    COMMUNICATION_HIDDEN,
    OF_UTILISATION,
    SHARES,
    START_UP_SECONDS,
    SYNC_SECONDS,
)
from convoy.config.benchmark import EnvironmentConfig

_IN_PROGRESS = {SHARES["communication"], COMMUNICATION_HIDDEN}
"""Shares of the step that add up to the time in which a collective was in progress."""


class Turn(NamedTuple):
    """One gang."""

    pair: int
    case: str
    """Name of the case that it belongs to."""
    group: Group


def turns(group: Group) -> Iterator[Turn]:
    """All gangs of a group of environments, in their order. Jobs are named after gangs, so each has its own name."""
    assert group.compared is not None
    number = 0
    for pair in range(group.compared.pairs):
        environments = group.compared.environments
        for environment in environments if pair % 2 == 0 else reversed(environments):
            number += 1
            spec = next(spec for spec in group.case_specs if spec.name == environment.name)
            gang = {"name": f"{group.name}-{number}", "baseline": None, "variants": (spec,), "compared": None}
            yield Turn(pair, environment.name, group.model_copy(update={**gang, "environment": environment}))


def merged_cases(group: Group, measured: Sequence[tuple[Turn, Case]]) -> tuple[Case, ...]:
    """The group's cases from those of its gangs: each block of a case is a gang."""
    assert group.compared is not None
    began = min((case.provenance.measured for _, case in measured), default=None)
    varied = tuple(sorted({name for each in group.compared.environments for name in each.set}))
    cases = []
    for spec in group.case_specs:
        own = sorted(((turn.pair, case) for turn, case in measured if turn.case == spec.name), key=lambda each: each[0])
        if not own:
            continue
        first = own[0][1]
        changes: dict[str, Any] = {
            "group": group.name,
            "baseline": None if spec.name == group.baseline else group.baseline,
            "provenance": first.provenance.model_copy(update={"measured": began}),
            "warm_up_steps": max(case.warm_up_steps for _, case in own),
            "steady": all(case.steady for _, case in own),
            "varied": varied,
            "carried_by": tuple(dict.fromkeys(use for _, case in own for use in case.carried_by)),
        }
        if group.network is None:
            changes["blocks"] = tuple(_gang_block(pair, case.blocks) for pair, case in own)
            changes["samples"] = _gang_samples([case for _, case in own])
            changes["values"] = {name: value for name, value in first.values.items() if not _is_of_gang(name)}
            changes["not_measured"] = {name: why for _, case in own for name, why in case.not_measured.items()}
        else:
            results = (NetworkResult(case.samples, case.values, case.not_measured) for _, case in own)
            changes |= merge_gangs(tuple(results))._asdict()
        cases.append(first.model_copy(update=changes))
    return tuple(cases)


def _gang_block(pair: int, blocks: Sequence[Block]) -> Block:
    """Medians over the blocks of one gang."""
    sent = [block.network_bytes for block in blocks if block.network_bytes is not None]
    return Block(
        number=pair,
        steps=sum(block.steps for block in blocks),
        seconds=statistics.median(block.seconds for block in blocks),
        cpu_seconds=statistics.median(block.cpu_seconds for block in blocks),
        parts={name: statistics.median(block.parts[name] for block in blocks) for name in blocks[0].parts},
        network_bytes=statistics.median(sent) if sent else None,
    )


def _gang_samples(cases: Sequence[Case]) -> dict[str, tuple[float, ...]]:
    """What was measured in each of the gangs, in their order; nothing that one of them lacks."""
    each = [_gang_figures(case) for case in cases]
    return {name: tuple(gang[name] for gang in each) for name in each[0] if all(name in gang for gang in each)}


def _gang_figures(case: Case) -> dict[str, float]:
    """Seconds of one gang by the names of samples. A step's synchronisation is the share in which a collective was in
    progress, in the steps that were traced, of the gang's step."""
    timings = timings_from_values(case.values, case.hardware.ranks)
    figures = {sample_name(timing): timing.seconds.estimate for timing in timings}
    if START_UP_SECONDS in case.values:
        figures[START_UP_SECONDS] = case.values[START_UP_SECONDS]
    if case.values.keys() >= _IN_PROGRESS:
        share = sum(case.values[name] for name in _IN_PROGRESS)
        figures[SYNC_SECONDS] = share * statistics.median(block.seconds for block in case.blocks)
    return figures


def _is_of_gang(name: str) -> bool:
    """Whether a value is one gang's, of which the case of all has a sample."""
    return name == START_UP_SECONDS or name in OF_UTILISATION or name.startswith(PREFIX)


def set_variables(environment: EnvironmentConfig | None, variables: MutableMapping[str, str] = os.environ) -> None:
    """Set its variables in this process, before any process group exists: NCCL, gloo and libfabric read them then."""
    for name, value in (environment.set if environment else {}).items():
        if value is None:
            variables.pop(name, None)
        else:
            variables[name] = value


def captured_variables(
    names: Sequence[str], environment: EnvironmentConfig | None, variables: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The variables that are set, among `names` and those that the environment sets."""
    relevant = dict.fromkeys([*names, *(environment.set if environment else {})])
    return {name: variables[name] for name in relevant if name in variables}
