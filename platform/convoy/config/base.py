"""What every configuration class shares."""

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, model_validator


class Frozen(BaseModel):
    """An immutable configuration: unknown keys are refused, field docstrings are descriptions."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _true_is_no_number(cls, values: Any) -> Any:
        """pydantic takes true for 1; a person who writes `micro_batch: true` meant something else."""
        for name, value in values.items() if isinstance(values, dict) else ():
            field = cls.model_fields.get(name)
            if isinstance(value, bool) and field is not None and _is_number(field.annotation):
                raise ValueError(f"{name} = {str(value).lower()}: must be a number")
        return values


def _is_number(annotation: Any) -> bool:
    kinds = get_args(annotation) or (annotation,)
    return bool not in kinds and any(kind in (int, float) for kind in kinds)
