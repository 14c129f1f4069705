"""Models as a user would bring them, for real workers."""

import subprocess

from torch import nn

from tests.model.user_module import build


def build_with_a_child(vocabulary: int = 257, width: int = 16) -> nn.Module:
    """Leaves a process running, as a compiler's pool or a data loader would."""
    subprocess.Popen(["sleep", "600"])
    return build(vocabulary, width)


def build_wrongly() -> nn.Module:
    """A bug of the user's."""
    raise RuntimeError("the layers do not fit")
