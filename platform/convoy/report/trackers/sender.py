"""Sending to one tracker: its run is opened, sent what the log has beyond its last steps, and closed.

The same for `convoy replay`, and for a job that runs: there the tracker lives in a process of its own.
"""

from collections.abc import Sequence

from convoy.job.events.registry import Event, GenerationEnded
from convoy.job.lineage import generation_name, generation_numbers, read_generation
from convoy.report.trackers.points import LivingBranch, points_of, take_unsent, texts_of
from convoy.report.trackers.tracker import Ending, TrackedRun, Tracker, TrackerState, ending_of
from convoy.storage import ObjectMissing, Store


class Sender:
    """Feeds one tracker from one log, read from its beginning."""

    def __init__(self, tracker: Tracker, run: TrackedRun, store: Store, position: str) -> None:
        """store: the job's. position: name of the object there that says what a tracker has which cannot say it
        itself. Raises what the tracker raises, and StoreUnavailable."""
        self._tracker, self._store = tracker, store
        self._position = f"trackers/{position}-{run.branch}.json"
        self._branch = LivingBranch()
        self._last_t = run.started
        self._state = tracker.open(run)
        self._keeps_position = not self._state.knows_last_steps
        if self._keeps_position:
            self._state.last_steps = read_position(store, self._position)

    def send(self, events: Sequence[Event], *, final: bool = False) -> int:
        """Send what is new in these events; how many points that is. final: no more events follow. Raises
        what the tracker raises."""
        living = self._branch.add(events, final=final)
        if self._tracker.takes_back:
            self._take_back_repeated_steps()
        last_steps = self._state.last_steps
        points, texts = take_unsent(points_of(living), last_steps), take_unsent(texts_of(living), last_steps)
        if points or texts:
            self._tracker.send(points, texts)
            if self._keeps_position:
                data = TrackerState(last_steps=last_steps).model_dump_json(include={"last_steps"})
                self._store.write(self._position, data.encode())
        self._last_t = max([self._last_t, *(event.t for event in events)])
        return len(points)

    def close(self, ending: Ending) -> None:
        """End the tracker's run, which a later attempt of the job may open again."""
        self._tracker.close(ending, self._last_t)

    def _take_back_repeated_steps(self) -> None:
        known, resumed = self._state.resumptions, self._branch.resumptions
        new = {generation: step for generation, step in resumed.items() if known.get(generation) != step}
        if new:
            for generation, step in new.items():  # each one, or whoever opens the tracker next takes it back again
                self._tracker.take_back(generation, step)
            first = min(new.values())
            self._state.resumptions = {**known, **new}
            self._state.last_steps = {name: min(last, first) for name, last in self._state.last_steps.items()}


def read_position(store: Store, name: str) -> dict[str, int]:
    """The last steps that a tracker was sent; none if it was sent nothing yet."""
    try:
        return TrackerState.model_validate_json(store.read(name)).last_steps
    except ObjectMissing:
        return {}


def newest_rewind(store: Store) -> int:
    """The generation by which the job was last rewound; 0: it was not. Raises StoreUnavailable."""
    for number in reversed(generation_numbers(store)):
        if read_generation(store, generation_name(number)).formation == "rewind":
            return number
    return 0


def replay(tracker: Tracker, run: TrackedRun, events: Sequence[Event], store: Store, position: str) -> int:
    """Send what the tracker lacks of a whole log, and end its run; the number of points sent. Raises as `Sender`."""
    sender = Sender(tracker, run.model_copy(update={"branch": newest_rewind(store)}), store, position)
    sent = sender.send(events, final=True)
    newest = max((event.generation for event in events), default=0)
    ended = [e for e in events if isinstance(e, GenerationEnded) and e.node == 0 and e.generation == newest]
    sender.close(ending_of(ended[-1].outcome if ended else ""))
    return sent
