"""Where the exported model of a commit lies, and whether it is whole."""

from convoy.job.lineage import CommitRef
from convoy.storage import Store

MODEL_MARKER = "config.json"
"""Written last, and the first file that any reader of the folder asks for."""


def model_prefix(ref: CommitRef) -> str:
    """Prefix of the model's object names."""
    return f"model/{ref.generation:06d}-{ref.step:09d}/"


def is_exported(store: Store, ref: CommitRef) -> bool:
    """Whether the commit's model is there, whole."""
    return model_prefix(ref) + MODEL_MARKER in store.sizes(model_prefix(ref))
