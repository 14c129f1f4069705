"""Gangs on machines that are reclaimed, simulated event by event: many at a time, each on its own clock.

Nothing is taken from the formulas that it is compared with. Each machine lives for an exponential time, a lost one has
another in its place after a wait; saves are due at multiples of the interval, are written beside training and count
once they are durable; a notice is used if the last save, behind one that is being written, is durable in time.
"""

from dataclasses import dataclass

import numpy as np

WORK, STALL, DRAIN, WAIT, RESTART, DONE = range(6)


@dataclass(frozen=True)
class Setting:
    """Seconds."""

    interval: float
    stall: float
    durable: float
    wait: float
    restart: float
    nodes: int
    machine_mtbf: float
    announced: float = 0.0
    """Share of interruptions that have notice."""
    spare: float = 0.0
    """From when a last save can begin until the machine is gone."""
    write: float = 0.0
    """For that save, with nothing beside it."""

    @property
    def mtbf(self) -> float:
        return self.machine_mtbf / self.nodes


@dataclass
class Totals:
    """Of all gangs: seconds, and how often."""

    productive: float
    stalled: float
    recomputed: float
    draining: float
    waiting: float
    restarting: float
    interruptions: float
    saves: float
    machine_seconds: float
    """That were there: while a gang waits, all but one."""

    @property
    def seconds(self) -> float:
        return self.productive + self.stalled + self.recomputed + self.draining + self.waiting + self.restarting

    @property
    def overhead(self) -> float:
        return self.seconds / self.productive - 1


def simulate(setting: Setting, gangs: int, work: float, seed: int) -> Totals:
    """Each gang does `work` seconds of work."""
    run = _Gangs(setting, gangs, work, np.random.default_rng(seed))
    while run.step():
        pass
    return run.totals()


class _Gangs:
    """The state of all of them, an element of each array for each gang."""

    def __init__(self, setting: Setting, gangs: int, work: float, random: np.random.Generator) -> None:
        self.set, self.work, self.random, self.every = setting, work, random, np.arange(gangs)
        self.now, self.at, self.kept = np.zeros(gangs), np.zeros(gangs), np.zeros(gangs)  # clock; work done; durable
        self.mode, self.mode_ends = np.full(gangs, WORK), np.zeros(gangs)
        self.saved, self.durable_at = np.zeros(gangs), np.full(gangs, np.inf)  # by the save being written
        self.lives = random.exponential(setting.machine_mtbf, (gangs, setting.nodes))
        self.spent = np.zeros((DONE, gangs))
        self.lost, self.interruptions, self.saves = np.zeros(gangs), 0, 0
        self._to_work(self.every)

    def step(self) -> bool:
        """The next event of each gang that is not done."""
        live = self.every[self.mode != DONE]
        if not len(live):
            return False
        taken = self.lives[live].min(axis=1)
        events = np.stack([self.durable_at[live], self.mode_ends[live], taken])
        first, then = events.argmin(axis=0), events.min(axis=0)
        passed, mode = then - self.now[live], self.mode[live]
        self.spent[mode, live] += passed
        self.at[live] += np.where(mode == WORK, passed, 0.0)
        self.now[live] = then
        self._durable(live[first == 0])
        for mode_of, end in (
            (WORK, self._work_ends), (STALL, self._to_work), (DRAIN, self._drained), (WAIT, self._to_restart),
            (RESTART, self._to_work),
        ):  # fmt: skip
            end(live[(first == 1) & (mode == mode_of)])
        self._taken(live[first == 2])
        return True

    def totals(self) -> Totals:
        recomputed = float(self.lost.sum())
        work, stall, drain, wait, restart = (float(seconds) for seconds in self.spent.sum(axis=1))
        there = self.set.nodes * (work + stall + drain + restart) + (self.set.nodes - 1) * wait
        return Totals(work - recomputed, stall, recomputed, drain, wait, restart, self.interruptions, self.saves, there)

    def _durable(self, of: np.ndarray) -> None:
        self.kept[of], self.durable_at[of] = self.saved[of], np.inf

    def _work_ends(self, of: np.ndarray) -> None:
        """A save is due, or all is done."""
        done = self.at[of] >= self.work - 1e-6
        self.mode[of[done]] = DONE
        due = of[~done]
        self.mode[due], self.mode_ends[due] = STALL, self.now[due] + self.set.stall
        self.saved[due], self.durable_at[due] = self.at[due], self.now[due] + self.set.durable
        self.saves += len(due)

    def _to_work(self, of: np.ndarray) -> None:
        due = (np.floor(self.at[of] / self.set.interval + 1e-9) + 1) * self.set.interval
        self.mode[of] = WORK
        self.mode_ends[of] = self.now[of] + np.minimum(due, self.work) - self.at[of]

    def _to_wait(self, of: np.ndarray) -> None:
        self.mode[of], self.mode_ends[of] = WAIT, self.now[of] + self.set.wait

    def _to_restart(self, of: np.ndarray) -> None:
        self.mode[of], self.mode_ends[of] = RESTART, self.now[of] + self.set.restart

    def _drained(self, of: np.ndarray) -> None:
        self.kept[of] = self.at[of]
        self.saves += len(of)
        self._to_wait(of)

    def _taken(self, of: np.ndarray) -> None:
        """A machine gets its notice, or is gone."""
        self.interruptions += len(of)
        machine = self.lives[of].argmin(axis=1)
        told = self.random.random(len(of)) < self.set.announced
        left = self.durable_at[of] - self.now[of]  # of the save being written, which is hurried
        behind = np.where(np.isfinite(left), left, 0.0) / self.set.durable * self.set.write
        running = (self.mode[of] == WORK) | (self.mode[of] == STALL)
        drains = told & running & (behind + self.set.write <= self.set.spare)
        begin = of[drains]
        self.mode[begin], self.mode_ends[begin] = DRAIN, self.now[begin] + (behind + self.set.write)[drains]
        self.durable_at[begin] = np.inf  # the drain ends later, with all there is
        goes_on = told & (self.mode[of] == DRAIN)
        stops = of[~goes_on]
        self.lost[stops] += self.at[stops] - self.kept[stops]
        self.at[stops], self.durable_at[stops] = self.kept[stops], np.inf
        self._to_wait(stops)
        away = np.where(goes_on, self.mode_ends[of] - self.now[of], 0.0) + self.set.wait
        self.lives[of, machine] = self.now[of] + away + self.random.exponential(self.set.machine_mtbf, len(of))
