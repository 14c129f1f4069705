"""What a process asks of the kernel about its parent, its orphans and its name (prctl(2))."""

import ctypes
import os

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36


def signal_at_end_of_parent(number: int) -> None:
    """Have this process sent a signal when the *thread* that started it ends, which may be before its process does.

    Not inherited by children. Raises OSError.
    """
    _prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Whatever loses its parent below this process becomes its child, instead of init's. Not inherited by children.

    Raises OSError.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_name(name: str) -> None:
    """What `ps -o comm` and `top` show for this thread, cut to 15 bytes. Raises OSError."""
    _prctl(_PR_SET_NAME, name.encode())


def _prctl(option: int, value: int | bytes) -> None:
    argument, nothing = ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_ulong(value), ctypes.c_ulong(0)
    if ctypes.CDLL(None, use_errno=True).prctl(option, argument, nothing, nothing, nothing) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
