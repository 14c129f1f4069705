"""What a drill is: a fault that is put into a real gang, and what is to become of it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, ClassVar, Literal

from convoy.job.events.registry import Event, FailureDetected, FailureKind, StepDone

if TYPE_CHECKING:
    from convoy.drills.gang import DrillGang
    from convoy.drills.observe import Observation

Continuation = Literal["undisturbed", "in place", "next attempt", "preempted"]
"""How a gang continues. undisturbed: no generation ends by the fault. in place: the same agents form the next
generation. next attempt: the attempt fails on all nodes, and the next one continues. preempted: the attempt ends as
agreed for a notice, and the next one continues."""


@dataclass(frozen=True)
class GangSize:
    """Of the gang."""

    nodes: int
    nproc: int

    @property
    def ranks(self) -> int:
        return self.nodes * self.nproc

    def node_of(self, rank: int) -> int:
        return rank // self.nproc


@dataclass(frozen=True)
class Expectation:
    """How a trial is to end. Every trial is also to train to its last step, with nothing lost."""

    way: Continuation = "in place"
    causes: frozenset[FailureKind] = frozenset()
    """One of these is the first cause that the gang settles on; empty: there is none, or any will do."""
    node: int | None = None
    """That the first cause names; None: any."""
    rank: int | None = None
    """The same; None: any, or the node as a whole."""
    generations: int | None = None
    """So many are formed in all; None: one more than without the fault, or as many where nothing ends by it."""
    same_state: bool = True
    """The final state equals the undisturbed run's."""


@dataclass(frozen=True)
class GangProgress:
    """How far a gang is, as its log has it now."""

    events: Sequence[Event]
    """All that was logged so far, by time."""
    attempt: int
    """Of the run's step: 0 is the first."""
    generation: int
    """Newest that was formed; 0: none yet."""
    committed: int | None
    """Step of the newest commit; None: there is none yet."""
    injected: Sequence[float] = ()
    """Wall times of the injections so far."""

    @property
    def steps_done(self) -> int:
        """Steps done by the newest generation; 0 before its first."""
        return max(
            (e.step for e in self.events if isinstance(e, StepDone) and e.generation == self.generation), default=0
        )

    def has_steps_and_commit(self, steps: int) -> bool:
        """The newest generation has done at least `steps` steps, and some checkpoint is committed."""
        return self.steps_done >= steps and self.committed is not None


@dataclass
class Fault(ABC):
    """One trial of a drill: made anew for each. In the order of use: `missing_requirement`, `setup`, what the gang is
    made of, `should_inject` until it is true, `inject`, `expected`, `repair` before each further attempt,
    `own_problems`."""

    name: ClassVar[str]
    """On the command line."""
    summary: ClassVar[str]
    """One line for people: what is done to the gang."""
    hooks: ClassVar[bool] = False
    """The workers are to take orders of the drill (`DrillGang.give_order`)."""
    repeated: ClassVar[bool] = False
    """`should_inject` is called again after an injection."""
    endless: ClassVar[bool] = False
    """The gang trains until the fault has come and gone, and is then asked to save and end: however fast it is, it is
    at work meanwhile."""
    lasting: ClassVar[bool] = False
    """It may go on for a given time."""
    default_seconds: ClassVar[float | None] = None
    """For how long by default."""
    target_detected: ClassVar[float | None] = None
    """Seconds that the median is to keep, and each trial three times; None: no limit."""
    target_recovered: ClassVar[float | None] = None
    """The same, until the first step is done in the new generation."""

    size: GangSize
    random: Random
    """Of this trial alone: draws from nothing else."""
    folder: Path
    """Of this trial alone, on this machine; removed after it."""
    seconds: float | None = None
    """The gang trains for so long, and is then asked to save and end; None: to its last step."""

    def __post_init__(self) -> None:
        """Draw what the trial is about."""
        return

    def missing_requirement(self) -> str | None:
        """What this machine lacks for the drill, in a few words; None: nothing. Called before anything else."""
        return None

    def setup(self, stack: ExitStack) -> None:
        """Make what the drill needs, such as a mount or a server; what undoes it is pushed on the stack."""
        return

    def job_root(self) -> str | None:
        """Where the job is to live; None: where the harness chooses, in a folder."""
        return None

    def overrides(self) -> Sequence[str]:
        """`key=value` words laid on the drill's configuration. Not of what a step computes: the undisturbed run is
        one without them."""
        return ()

    def environment(self, node: int) -> Mapping[str, str]:
        """Added to that of the node's agent, and so of all that it starts."""
        return {}

    def command_prefix(self, node: int) -> Sequence[str]:
        """Words before the node's command line, such as `ip netns exec NAME`."""
        return ()

    def main_host(self) -> str:
        """Where the nodes reach node 0."""
        return "127.0.0.1"

    def should_inject(self, progress: GangProgress) -> bool:
        """Whether to inject the fault now. Asked every few hundredths of a second."""
        return progress.has_steps_and_commit(INJECT_AFTER)

    @abstractmethod
    def inject(self, gang: "DrillGang") -> float:
        """Do it: wall time of when it began to be so. May wait, and do more later, such as heal a network."""

    def repair(self, gang: "DrillGang") -> None:
        """Called when an attempt has ended on all nodes and before the next one is started."""
        return

    @abstractmethod
    def expected(self) -> Expectation:
        """How the trial is to end. Called after the injection."""

    def is_detection(self, event: Event) -> bool:
        """Whether the event is the gang's notice of the fault: the first one after the injection gives `detected_s`."""
        return isinstance(event, FailureDetected)

    def detection_target_seconds(self, trial: "Observation") -> float | None:
        """Seconds that the median is to keep to: `target_detected`, unless it depends on the trial."""
        return self.target_detected

    def recovery_target_seconds(self, trial: "Observation") -> float | None:
        """The same of `target_recovered`."""
        return self.target_recovered

    def own_problems(self, trial: "Observation") -> list[str]:
        """What is wrong beyond what is checked in every trial, one line each; empty: nothing."""
        return []


SAVE_EVERY = 10
"""Steps between two checkpoints of a drill's gang."""

INJECT_AFTER = 13
"""Steps after which most faults come: between two saves, with the commit before them there."""

STEPS = 30
"""Of a drill's job, unless it runs for a given time."""


@dataclass(frozen=True)
class DrillOptions:
    """What is drilled, and how often."""

    size: GangSize = GangSize(nodes=3, nproc=1)
    trials: int = 3
    seconds: float | None = None
    """For drills that may go on for a time; None: each drill's own."""
    seed: int = 0
    keep: bool = False
    """Jobs and what their agents printed are kept for a look."""
    words: Sequence[str] = field(default_factory=tuple)
    """`key=value` words laid on the configuration of all."""
    slack: float = 3.0
    """A single trial may take so many times what the median is to keep to."""
