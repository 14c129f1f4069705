"""The parts of a page, each with what the catalog has of its machines. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from convoy.audit.claims import Claims, PageClaims
from convoy.audit.facts import PAGE, Run, runs_of
from convoy.audit.rules.checkpoints import Checkpoint
from convoy.audit.rules.communication import Collective, Link, collective, link


class Parts(NamedTuple):
    """Of a page, each with what the catalog has of its machines."""

    runs: list[Run]
    checkpoints: list[Checkpoint]
    transfers: list[Collective | Link]


def parts_of(page: PageClaims) -> Parts:
    runs = runs_of(page)
    by_id = {run.claims.id: run for run in runs if run.claims.id}
    shared = _shared(runs)

    def of(name: str) -> Run | None:
        return by_id[name] if name else shared

    def scopes(section: str, items: Sequence[Claims]) -> list[str]:
        ids = [getattr(each, "id", "") for each in items]
        return [f"{section}.{name}" if name else f"{section}[{at + 1}]" for at, name in enumerate(ids)]

    saved = zip(scopes("checkpoints", page.checkpoints), page.checkpoints, strict=True)
    sent = zip(scopes("collectives", page.collectives), page.collectives, strict=True)
    joined = zip(scopes("links", page.links), page.links, strict=True)
    return Parts(
        runs,
        [Checkpoint(scope, claims, of(claims.run)) for scope, claims in saved],
        [
            *(collective(scope, claims, of(claims.run)) for scope, claims in sent),
            *(link(scope, claims, of(claims.run)) for scope, claims in joined),
        ],
    )


def _shared(runs: Sequence[Run]) -> Run | None:
    """Of what names no run: the only run there is, or what stands at the top of the file."""
    below = [run for run in runs if run.scope != PAGE]
    return below[0] if len(below) == 1 else next((run for run in runs if run.scope == PAGE), None)
