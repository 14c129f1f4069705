"""The model: one decoder transformer for the GPT and LLaMA families, or a user's own module."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from convoy.config.base import FUNCTION, FrozenConfig


class TransformerConfig(FrozenConfig):
    """Shape of the decoder. The defaults are the `tiny` preset of `configs/models/`."""

    name: str = "tiny"
    """Name of the model on cards and in results."""
    vocab_size: int = Field(4096, ge=2)
    """Rows of the embedding; at least the tokenizer's vocabulary."""
    n_layers: int = Field(4, ge=1)
    """Decoder blocks."""
    d_model: int = Field(192, ge=8)
    """Width of the residual stream."""
    n_heads: int = Field(3, ge=1)
    """Query heads; must divide d_model."""
    n_kv_heads: int | None = Field(None, ge=1)
    """Key and value heads (grouped-query attention); must divide n_heads. Default: n_heads."""
    d_ff: int | None = Field(None, ge=1)
    """Hidden width of the MLP. Default: 4 * d_model."""
    max_sequence_length: int = Field(256, ge=2)
    """Longest sequence the positions allow, in tokens."""
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    """Normalisation before attention, before the MLP and before the head."""
    norm_eps: float = Field(1e-5, gt=0)
    """Added to the variance in every norm."""
    positions: Literal["learned", "rotary"] = "learned"
    """Learned absolute embeddings (GPT-2) or rotary embeddings of queries and keys (LLaMA)."""
    rope_theta: float = Field(10000.0, gt=0)
    """Base of the rotary frequencies."""
    mlp: Literal["gelu", "swiglu"] = "gelu"
    """GELU with the tanh approximation (GPT-2), or SwiGLU with three matrices (LLaMA)."""
    bias: bool = True
    """Biases in linear layers and LayerNorm."""
    tied_embeddings: bool = True
    """The head shares the token embedding's weight."""
    dropout: float = Field(0.0, ge=0.0, lt=1.0)
    """Probability of zeroing, after the embedding, attention and MLP."""
    init_std: float = Field(0.02, gt=0)
    """Standard deviation of the normal initialisation; residual projections use init_std / sqrt(2 n_layers)."""
    init_from: str | None = None
    """Folder of a Hugging Face model (config.json and *.safetensors) whose weights training starts from."""

    @property
    def kv_heads(self) -> int:
        return self.n_kv_heads or self.n_heads

    @property
    def ff_width(self) -> int:
        return self.d_ff or 4 * self.d_model

    @property
    def head_width(self) -> int:
        return self.d_model // self.n_heads

    @property
    def tensor_split_sizes(self) -> dict[str, int]:
        """Sizes that tensor-parallel ranks must divide, by key."""
        return {"n_heads": self.n_heads, "n_kv_heads": self.kv_heads, "d_ff": self.ff_width}

    @property
    def vectors_per_norm(self) -> int:
        """Vectors that each norm has: a weight, and perhaps a bias."""
        return 2 if self.norm == "layernorm" and self.bias else 1

    @model_validator(mode="after")
    def _heads_divide(self) -> "TransformerConfig":
        if self.d_model % self.n_heads:
            raise ValueError(f"n_heads = {self.n_heads}: must divide d_model, {self.d_model}")
        if self.n_heads % self.kv_heads:
            raise ValueError(f"n_kv_heads = {self.kv_heads}: must divide n_heads, {self.n_heads}")
        if self.positions == "rotary" and self.head_width % 2:
            raise ValueError(f"n_heads = {self.n_heads}: rotary positions need an even d_model / n_heads")
        return self


class CustomModelConfig(FrozenConfig):
    """A user's own `nn.Module`, trained by the same loop."""

    build: str = Field(pattern=FUNCTION)
    """`package.module:function`; called with `args`, returns the module that `task` describes."""
    task: Literal["tokens", "module"] = "tokens"
    """tokens: the module maps token ids (B, S) to logits (B, S, V), and Convoy computes the loss. module: the module
    takes a batch of `data.build` and returns its loss."""
    args: dict[str, Any] = {}
    """Keyword arguments of the builder."""
    name: str = "custom"
    """Name of the model on cards and in results."""
    vocab_size: int = Field(0, ge=0)
    """Width V of the logits; of `task: tokens` alone."""
    max_sequence_length: int = Field(0, ge=0)
    """Longest sequence the model takes, in tokens; of `task: tokens` alone."""

    @model_validator(mode="after")
    def _has_the_sizes_of_its_task(self) -> "CustomModelConfig":
        for key, size in {"vocab_size": self.vocab_size, "max_sequence_length": self.max_sequence_length}.items():
            if self.task == "tokens" and size < 2:
                raise ValueError(f"{key} = {size}: must be at least 2" if size else f"{key}: required, but missing")
            if self.task == "module" and size:
                raise ValueError(f"{key} = {size}: only with task: tokens")
        return self


def _model_kind(value: Any) -> str:
    custom = "build" in value if isinstance(value, dict) else isinstance(value, CustomModelConfig)
    return "custom" if custom else "transformer"


ModelConfig = Annotated[
    Annotated[TransformerConfig, Tag("transformer")] | Annotated[CustomModelConfig, Tag("custom")],
    Discriminator(_model_kind),
]
