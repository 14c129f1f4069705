"""The secret of a formation, which nodes prove that they know: a private object below `tokens/` in the job's store."""

import contextlib
import re
import secrets
from collections.abc import Iterator

from convoy.storage import Store, StoreUnavailable

_FOLDER = "tokens/"


def new_token() -> str:
    """A secret for one formation."""
    return secrets.token_hex(32)


@contextlib.contextmanager
def token_object(store: Store, generation: int, token: str) -> Iterator[str]:
    """The name below `tokens/` of an object that holds this generation's token; it is removed if the block raises.

    Several runs may try to form the same generation, so the name is random. Without a token there is no object, and
    the name is empty.
    """
    name = f"{generation:06d}-{secrets.token_hex(8)}" if token else ""
    if name:
        store.create(_FOLDER + name, token.encode(), private=True)
    try:
        yield name
    except BaseException:
        if name:
            with contextlib.suppress(StoreUnavailable):  # this must not hide the error; a later formation removes it
                store.delete(_FOLDER + name)
        raise


def read_token(store: Store, name: str) -> str:
    """Raises ObjectMissing if the formation has ended."""
    return store.read(_FOLDER + name).decode()


def remove_tokens(store: Store, newest: int) -> None:
    """Remove the tokens of this generation and of older ones, which this generation supersedes."""
    for name in store.sizes(_FOLDER):
        match = re.match(rf"{_FOLDER}(\d+)-", name)
        if match and int(match[1]) <= newest:
            store.delete(name)
