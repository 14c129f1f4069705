"""What a save or a restore raises. Imports nothing, so that whoever handles it need not import torch."""


class CheckpointError(RuntimeError):
    """A checkpoint was not saved, or none could be restored; the text is one line."""


def one_line(error: BaseException) -> str:
    """What is shown of an error: its text, or its kind if it has none."""
    return " ".join(str(error).split()) or type(error).__name__
