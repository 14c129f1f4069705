"""What the suite of gradient synchronisation compares."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from convoy.config.base import Frozen

NETWORK_VARIABLES = ("NCCL_", "GLOO_", "FI_")
"""Beginnings of the variables that an environment may set: those that only say how ranks talk to each other."""

Text = Annotated[str, Field(coerce_numbers_to_str=True)]
"""`NCCL_IB_DISABLE: 1` is a number to YAML."""


class EnvironmentConfig(Frozen):
    """How the ranks of a gang talk to each other."""

    name: str = Field(min_length=1)
    """Of its case."""
    set: dict[str, Text | None] = {}
    """Variables of NCCL_*, GLOO_* and FI_*, which every rank has from its start; null: not set, though the machine has
    it. Those that are not named are as the machine has them."""

    @field_validator("set")
    @classmethod
    def _of_the_network(cls, variables: dict[str, str | None]) -> dict[str, str | None]:
        for name in variables:
            if not name.startswith(NETWORK_VARIABLES):
                raise ValueError(f"{name}: must begin with {', '.join(NETWORK_VARIABLES)}")
        return variables


class SyncConfig(Frozen):
    """What synchronisation takes of a step, and environments beside each other in gangs that take turns."""

    share: bool = True
    """Whether training together is compared with as many trainings of one rank at once, each of which holds a whole
    model; false: environments alone are compared, as of a model that no rank can hold."""
    environments: tuple[EnvironmentConfig, ...] = ()
    """The first is what the others are compared with; empty: nothing is compared."""
    claims: Literal["rdma"] | None = None
    """What the others have and the first has not, as it was promised: less than 1.5× is then told not to be
    significant."""
    pairs: int = Field(6, ge=6)
    """Gangs of each environment: what is told apart is gangs, and an interval needs six."""

    @model_validator(mode="after")
    def _some_to_compare(self) -> "SyncConfig":
        names = [environment.name for environment in self.environments]
        if len(names) == 1 or len(set(names)) < len(names):
            raise ValueError(f"environments = {', '.join(names)}: must be two or more, of different names")
        if len({tuple(sorted(each.set.items(), key=str)) for each in self.environments}) < len(names):
            raise ValueError(f"environments = {', '.join(names)}: must set different variables")
        if not self.share and not names:
            raise ValueError("share = false: only with environments, or nothing is measured")
        if self.claims is not None and not names:
            raise ValueError(f"claims = {self.claims}: only with environments that it is claimed of")
        return self
