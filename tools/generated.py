"""Blocks of a document that a tool writes, between marks that name the tool."""

import re


def replaced(document: str, name: str, tool: str, text: str) -> str:
    """The document with `text` in the block called `name`. Without the block's marks it stays as it is."""
    begin, end = f"<!-- {name}: written by tools/{tool}, not by hand -->", f"<!-- end of {name} -->"
    block = re.compile(f"({re.escape(begin)}\n).*?(\n{re.escape(end)})", re.DOTALL)
    return block.sub(lambda marks: marks[1] + text + marks[2], document)
