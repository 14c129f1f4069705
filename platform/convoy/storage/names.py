"""What an object may be called: names of folders and of a file, with `/` between them, which lead below the root only.

Whoever can write to a store can write any name into its objects. So a name that is read from an object is checked when
the object is parsed, as a `Component`, and a store refuses every other name once more.
"""

from typing import Annotated

from pydantic import AfterValidator

from convoy.storage.base import StoreUnavailable

LONGEST_BYTES = 255
"""Of a component; no common file system takes longer ones."""


def is_component(text: str) -> bool:
    """Whether the text can be the name of one file in a folder."""
    fits = len(text.encode(errors="surrogatepass")) <= LONGEST_BYTES
    return fits and text not in ("", ".", "..") and "/" not in text and "\0" not in text


def is_name(text: str) -> bool:
    """Whether the text can be the name of an object: one component, or several with `/` between them."""
    return all(map(is_component, text.split("/")))


def check_name(uri: str, name: str) -> None:
    """Raise StoreUnavailable for what is not the name of an object in the store at `uri`."""
    if not is_name(name):
        raise StoreUnavailable(f"{uri}: {name!r} is not the name of an object there")


def check_prefix(uri: str, prefix: str) -> None:
    """The same for the beginning of names: its last component may be cut anywhere."""
    folder = prefix.rpartition("/")[0]
    if folder:
        check_name(uri, folder)


def _component(text: str) -> str:
    if not is_component(text):
        raise ValueError(f"{text!r} is not the name of one file")
    return text


def _component_or_empty(text: str) -> str:
    return _component(text) if text else text


Component = Annotated[str, AfterValidator(_component)]
"""A field that becomes one component of a name, in an object that is read from a store."""

OptionalComponent = Annotated[str, AfterValidator(_component_or_empty)]
"""The same, where empty text stands for none."""
