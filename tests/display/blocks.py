"""Blocks for every way to draw a page."""

from convoy.display.page import (
    Block,
    Callout,
    Chart,
    Code,
    Entry,
    Heading,
    Progress,
    Table,
    Text,
    Timeline,
    Value,
    Values,
)


def every_block(text: str) -> tuple[Block, ...]:
    """One of each kind, with this text, 17 times, wherever it may have one."""
    return (
        Heading(text),
        Text(text),
        Text(text, quiet=True),
        Callout(text, text),
        Values((Value(text, text, text),)),
        Progress(text, 1, 2, text),
        Table((text,), ((text,),)),
        Chart(text, {}, {text: (1.0,)}),
        Timeline((Entry(text, text),)),
        Code(text),
    )
