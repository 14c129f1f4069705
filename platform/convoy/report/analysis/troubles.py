"""What is not as it should be at the log's end, while the gang goes on all the same. Pure."""

from collections.abc import Sequence

from convoy.job.events.types import AnyEvent, SlowNode, StorageBad, StorageGood
from convoy.report.train_report import Generation, SlowNow, StorageTrouble


def storage_troubles(events: Sequence[AnyEvent], formed: Sequence[Generation]) -> tuple[StorageTrouble, ...]:
    """Tiers that some node of the newest attempt does not reach, or that are full. formed: the log's generations."""
    ours = newest_attempt(formed)
    bad: dict[tuple[str, int], StorageBad] = {}
    for event in events:
        if isinstance(event, StorageBad) and event.generation in ours:
            bad[event.tier, event.node] = event
        elif isinstance(event, StorageGood):
            bad.pop((event.tier, event.node), None)
    return tuple(
        StorageTrouble(
            tier=tier,
            problem=min((e for e in bad.values() if e.tier == tier), key=lambda e: e.t).problem,
            since=min(e.t for e in bad.values() if e.tier == tier),
            nodes=tuple(sorted(e.node for e in bad.values() if e.tier == tier)),
        )
        for tier in dict.fromkeys(tier for tier, _ in bad)
    )


def slow_nodes(newest: Sequence[AnyEvent]) -> tuple[SlowNow, ...]:
    """Nodes that the others wait for. newest: the events of the newest generation."""
    last = {e.slow_node: e for e in newest if isinstance(e, SlowNode)}
    return tuple(SlowNow(node=node, share=e.share, since=e.t) for node, e in sorted(last.items()) if e.share)


def newest_attempt(formed: Sequence[Generation]) -> set[int]:
    """Its generations, formed in place one after the other. formed: the log's."""
    if not formed:
        return set()
    newest = formed[-1]
    return {g.number for g in formed if (g.run, g.attempt) == (newest.run, newest.attempt)}
