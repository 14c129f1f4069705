"""What every configuration class shares."""

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """An immutable configuration: unknown keys are refused, field docstrings are descriptions."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
