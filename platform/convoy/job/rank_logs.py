"""What each rank printed in each generation: `logs/<generation>/<node>/rank<rank>.log` in the job's root."""

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from convoy.config.errors import ConfigError
from convoy.job.heartbeat import live_mark
from convoy.storage import ObjectMissing, Store

LOGS = "logs/"
POLL_SECONDS = 1.0
TAIL_BYTES = 65_536
"""Read at a time, from the end, to find the last lines."""

_NAME = re.compile(r"logs/(\d+)/(\d+)/rank(\d+)\.log")


@dataclass(frozen=True, order=True)
class RankLog:
    """One rank's output in one generation."""

    generation: int
    rank: int
    node: int
    bytes: int = 0

    @property
    def name(self) -> str:
        return log_name(self.generation, self.node, self.rank)


def log_name(generation: int, node: int, rank: int) -> str:
    """The object that holds a rank's output."""
    return f"{LOGS}{generation:06d}/{node:05d}/rank{rank:05d}.log"


def available_logs(store: Store) -> list[RankLog]:
    """All that there are, oldest generation first. Raises StoreUnavailable."""
    logs = []
    for name, size in store.sizes(LOGS).items():
        if match := _NAME.fullmatch(name):
            generation, node, rank = map(int, match.groups())
            logs.append(RankLog(generation, rank, node, size))
    return sorted(logs)


def choose_log(logs: Sequence[RankLog], rank: int, generation: int | None = None) -> RankLog:
    """The rank's log of that generation, by default its newest. Raises ConfigError if there is none."""
    if not logs:
        raise ConfigError(f"--rank {rank}: the job has no logs yet")
    generations = sorted({log.generation for log in logs})
    if generation is not None and generation not in generations:
        raise ConfigError(f"--generation {generation}: has no logs; {_number_list('generations', generations)} have")
    of_rank = [log for log in logs if log.rank == rank and generation in (None, log.generation)]
    if not of_rank:
        ranks = sorted({log.rank for log in logs if generation in (None, log.generation)})
        raise ConfigError(f"--rank {rank}: has no log; {_number_list('ranks', ranks)} have")
    return of_rank[-1]


def start_of_last_lines(store: Store, log: RankLog, lines: int) -> int:
    """Where the last so many lines begin; a line without its newline is one. Raises StoreUnavailable."""
    start, tail = log.bytes, b""
    while start > 0 and tail[:-1].count(b"\n") < lines:
        start = max(0, start - TAIL_BYTES)
        tail = store.read(log.name, start)
    last_lines = tail.splitlines(keepends=True)[-lines:] if lines else []
    return start + len(tail) - sum(map(len, last_lines))


def stream(
    store: Store, log: RankLog, start: int = 0, *, follow: bool = True, poll_seconds: float = POLL_SECONDS
) -> Iterator[tuple[RankLog, bytes]]:
    """What the log holds from byte `start`, and then what comes: of the rank's next generations too.

    follow: go on until no run is working on the job. Each piece with the log it is of. Raises StoreUnavailable.
    """
    while True:
        working = follow and live_mark(store) is not None  # checked first, so that a run's last words are printed
        newer = _next_log(store, log) if follow else None
        try:
            data = store.read(log.name, start)
        except ObjectMissing:
            data = b""
        if data:
            yield log, data
            start += len(data)
        if newer is not None:
            log, start = newer, 0
        elif not working:
            return
        else:
            time.sleep(poll_seconds)


def _next_log(store: Store, log: RankLog) -> RankLog | None:
    """The rank's log of the first generation after that one's."""
    return next((n for n in available_logs(store) if n.rank == log.rank and n.generation > log.generation), None)


def _number_list(what: str, numbers: Sequence[int]) -> str:
    """`generations 3 to 7`, `ranks 0, 2`."""
    whole = list(range(numbers[0], numbers[-1] + 1)) == list(numbers)
    if whole and len(numbers) > 2:
        return f"{what} {numbers[0]} to {numbers[-1]}"
    return f"{what} {', '.join(map(str, numbers))}"
