"""What every configuration class shares."""

from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from convoy.config.errors import yaml_value

MAX_INTEGER = 2**63 - 1
"""What every store, tensor and log can hold; and a float, to which sums convert it."""

FUNCTION = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
"""Of text that names a user's function as `package.module:function`."""

UnixTime = Annotated[float, Field(ge=0, le=2**36, allow_inf_nan=False)]
"""Seconds since 1970, in an object that is read from a store: a moment that a calendar can name."""


class FrozenConfig(BaseModel):
    """An immutable configuration: unknown keys are refused, field docstrings are descriptions."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _check_numbers(cls, values: Any) -> Any:
        """pydantic takes true for 1; a person who writes `micro_batch: true` meant something else. And it takes
        integers of any length."""
        for name, value in values.items() if isinstance(values, dict) else ():
            field = cls.model_fields.get(name)
            if isinstance(value, bool) and field is not None and _is_number_type(field.annotation):
                raise ValueError(f"{name} = {str(value).lower()}: must be a number")
            if isinstance(value, int) and abs(value) > MAX_INTEGER:
                raise ValueError(f"{name} = {yaml_value(value)}: must be at most {MAX_INTEGER}")
        return values


def _is_number_type(annotation: Any) -> bool:
    kinds = get_args(annotation) or (annotation,)
    return bool not in kinds and any(kind in (int, float) for kind in kinds)
