"""What the writer process was asked to do between saves, as far as it has not said that it is done."""

from convoy.checkpoint.messages import AfterCommit, Chore, ChoreDone
from convoy.job.lineage import CommitRef


class Asked:
    """On each tier the newest commit of each kind of chore: there a writer process keeps the order."""

    def __init__(self) -> None:
        self._left: dict[tuple[Chore, str], CommitRef] = {}

    def ask(self, request: AfterCommit) -> None:
        if request.verify_part is not None:
            self._left["reading_back", request.tier] = request.ref
        self._left.update((("copying", uri), request.ref) for uri in request.copy_to)

    def done(self, report: ChoreDone) -> None:
        if self._left.get((report.chore, report.tier)) == report.ref:
            del self._left[report.chore, report.tier]

    @property
    def left(self) -> list[str]:
        """One line for each."""
        ends = {"reading_back": "was not read back on {}", "copying": "was not copied to {} and read back there"}
        return [f"step {ref.step} {ends[chore].format(uri)}" for (chore, uri), ref in self._left.items()]
