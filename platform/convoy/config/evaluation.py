"""Periodic evaluation on the held-out split, and the sample text of the card."""

from pydantic import Field

from convoy.config.base import Frozen


class EvaluationConfig(Frozen):
    """When and on how much."""

    every_steps: int = Field(125, ge=1)
    """Evaluate at each multiple of this many steps, at step 0 and at the last. A notice of the end cuts it short."""
    sequences: int = Field(64, ge=1)
    """Held-out sequences per evaluation, the same ones each time."""
    prompts: tuple[str, ...] = ("def main(", "import ", "class Test")
    """Text the trained model continues on the final card."""
    sample_tokens: int = Field(64, ge=0)
    """New tokens per prompt; 0 generates none."""
    temperature: float = Field(0.8, ge=0)
    """Of sampling; 0 is greedy."""
