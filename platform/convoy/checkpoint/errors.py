"""What a save or a restore raises. Imports nothing, so that whoever handles it need not import torch."""


class CheckpointError(RuntimeError):
    """A checkpoint was not saved, or none could be restored; the text is one line."""
