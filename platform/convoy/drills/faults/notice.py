"""Drills in which a machine is to be reclaimed, and says so ahead. Each node has a metadata service of its own."""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import ClassVar

from convoy.drills.checks import late_save_problems, notice_problems, recompute_problems
from convoy.drills.fault import INJECT_AFTER, Expectation, Fault, GangProgress
from convoy.drills.gang import DrillGang
from convoy.drills.observe import Observation
from convoy.drills.testbed.imds import SPOT_ACTION, ImdsStandIn
from convoy.job.events.registry import Event, NoticeReceived

LEAD_SECONDS = 120.0
"""Between EC2's notice and the interruption."""


class _NoticeFault(Fault):
    """One node gets a notice, by which the attempt is to end with all that was done saved."""

    target_detected = 1.5
    source: ClassVar[str] = "spot"
    """Of notices, that has it."""

    @cached_property
    def victim(self) -> int:
        """The node that has notice."""
        return self.random.randrange(self.size.nodes)

    @cached_property
    def services(self) -> list[ImdsStandIn]:
        """One for each node."""
        return [ImdsStandIn() for _ in range(self.size.nodes)]

    @property
    def service(self) -> ImdsStandIn:
        """The victim's."""
        return self.services[self.victim]

    def setup(self, stack: ExitStack) -> None:
        for service in self.services:
            stack.enter_context(service)

    def environment(self, node: int) -> Mapping[str, str]:
        return {
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": self.services[node].url,
            "AWS_EC2_METADATA_DISABLED": "false",
        }

    def expected(self) -> Expectation:
        return Expectation(way="preempted")

    def is_detection(self, event: Event) -> bool:
        return isinstance(event, NoticeReceived)

    def own_problems(self, trial: Observation) -> list[str]:
        return [
            *notice_problems(trial, self.victim, self.source, "save_and_end"),
            *late_save_problems(trial, at_end=True),
            *recompute_problems(trial),
        ]


class SpotNotice(_NoticeFault):
    """EC2 takes the machine away, and the next attempt has another one in its place."""

    name = "spot-notice"
    summary = "EC2 warns one node, two minutes ahead, that it reclaims the machine"

    def inject(self, gang: DrillGang) -> float:
        self.service.announce_interruption(lead_seconds=LEAD_SECONDS)
        return time.time()

    def repair(self, gang: DrillGang) -> None:
        """Another machine has no notice."""
        self.service.withdraw_notices()


class NoticeThenNothing(_NoticeFault):
    """The decision was made and remains: the attempt ends well, and the next one runs on the same machine."""

    name = "notice-then-nothing"
    summary = "a spot notice is taken back as soon as the node has read it, and the machine stays"

    def inject(self, gang: DrillGang) -> float:
        self.service.announce_interruption(lead_seconds=LEAD_SECONDS)
        at = time.time()
        gang.wait_for("the question for notices", lambda: _has_served_notice(self.service))
        self.service.withdraw_notices()
        return at


class RebalanceNotice(_NoticeFault):
    """EC2 may reclaim the machine: the gang saves and continues."""

    name = "rebalance"
    summary = "EC2 recommends that one node leave its machine; the gang saves at once and continues"
    source = "rebalance"

    def overrides(self) -> Sequence[str]:
        return ("checkpoint.every_steps=1000", "notices.rebalance=save")  # so that no other save is taken for this one

    def should_inject(self, progress: GangProgress) -> bool:
        return progress.steps_done >= INJECT_AFTER

    def inject(self, gang: DrillGang) -> float:
        self.service.recommend_rebalance()
        return time.time()

    def expected(self) -> Expectation:
        return Expectation(way="undisturbed")

    def own_problems(self, trial: Observation) -> list[str]:
        return [*notice_problems(trial, self.victim, self.source, "save"), *late_save_problems(trial, at_end=False)]


class SigtermNotice(_NoticeFault):
    """How most platforms end a process."""

    name = "sigterm"
    summary = "SIGTERM to one node's agent, as a platform ends a task"
    source = "sigterm"

    def inject(self, gang: DrillGang) -> float:
        at = time.time()
        os.kill(gang.agent_pid(self.victim), signal.SIGTERM)
        return at


def _has_served_notice(service: ImdsStandIn) -> bool:
    return any(each.path == SPOT_ACTION and each.status == 200 for each in list(service.requests))
