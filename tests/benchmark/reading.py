"""What a benchmark's page has, block by block."""

from typing import Any

from convoy.display.page import Heading, Page, Table


def of(page: Page, kind: type) -> list[Any]:
    return [block for block in page.blocks if isinstance(block, kind)]


def headings(page: Page) -> list[str]:
    return [heading.text for heading in of(page, Heading)]


def below(page: Page, heading: str, kind: type = object) -> list[Any]:
    """Blocks up to the next heading."""
    blocks = list(page.blocks)
    start = next(i for i, block in enumerate(blocks) if isinstance(block, Heading) and block.text == heading)
    end = next((i for i in range(start + 1, len(blocks)) if isinstance(blocks[i], Heading)), len(blocks))
    return [block for block in blocks[start + 1 : end] if isinstance(block, kind)]


def row(table: Table, first: str) -> dict[str, str]:
    (found,) = [each for each in table.rows if each[0] == first]
    return dict(zip(table.headers, found, strict=True))
