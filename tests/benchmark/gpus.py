"""A GPU that was made up."""

from dataclasses import dataclass, field


@dataclass
class Fake:
    """A GPU that tells these energies one after the other, and the same power and utilisation each time."""

    energies: list[int | None]
    power: int | None = 300_000
    busy: int | None = 80
    looks: int = field(default=0, init=False)

    def energy_millijoules(self) -> int | None:
        return self.energies.pop(0)

    def power_milliwatts(self) -> int | None:
        self.looks += 1
        return self.power

    def utilisation_percent(self) -> int | None:
        return self.busy
