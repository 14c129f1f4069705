"""Two hosts must find damage, where a gang has two: one with bad memory, a bad network card or a bad disk cache finds
damage wherever it reads, and would take the whole job back, commit by commit.

Which rank reads again what another has found, and what follows: the commit is damaged, or a host reads wrongly.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from convoy.checkpoint.commits import CommitGoneError
from convoy.checkpoint.format import DamagedCommitError
from convoy.checkpoint.verify.commit import Stop, StoppedError, SuspectedError, verify_part
from convoy.checkpoint.verify.marks import Suspicion, dismiss_suspicions, host_key, read_suspicion, suspicions
from convoy.config.errors import one_line
from convoy.job.lineage import CommitRef, damaged_commits
from convoy.storage import Store


@dataclass(frozen=True)
class DamageFinding:
    """Damage that a rank found in two reads."""

    rank: int
    part: int | None
    """The writer of the damaged part; None: the commit itself, or it is not known."""
    error: str


@dataclass(frozen=True)
class WitnessedFinding:
    """A finding, and the rank of another host that has read the same, or is to."""

    finding: DamageFinding
    witness: int


def find_confirmed_damage(findings: Sequence[DamageFinding], hosts: Sequence[str]) -> WitnessedFinding | None:
    """A finding that another host has made as well, of the same part, with its rank; hosts: of each rank."""
    for finding in findings:
        for other in findings:
            if other.part == finding.part and hosts[other.rank] != hosts[finding.rank]:
                return WitnessedFinding(finding, other.rank)
    return None


def plan_rereads(findings: Sequence[DamageFinding], hosts: Sequence[str]) -> list[WitnessedFinding]:
    """The first finding of each host, which shows whether to trust the host. Empty where there is only one host."""
    first = {hosts[finding.rank]: finding for finding in reversed(findings)}
    witnesses = {name: next((r for r, other in enumerate(hosts) if other != name), None) for name in first}
    pairs = ((finding, witnesses[name]) for name, finding in first.items())
    return [WitnessedFinding(finding, witness) for finding, witness in pairs if witness is not None]


def rereading_rank(part: int, suspected_by: str, hosts: Sequence[str]) -> int | None:
    """The rank that reads a part again which a host suspects: the part's own writer, or the next one elsewhere. None:
    all ranks are on that host."""
    order = ((part + step) % len(hosts) for step in range(len(hosts)))
    return next((rank for rank in order if hosts[rank] != suspected_by), None)


def misread_message(host: str, other: str, label: str, error: str) -> str:
    """One line about a host that found damage where another finds none."""
    return (
        f"{host} reads {label} otherwise than {other}, which finds it whole: memory, network or a disk cache of {host} "
        f"is at fault ({error})"
    )


def part_label(part: int | None, commit: str) -> str:
    """The object that was read, for people."""
    return commit if part is None else f"part {part} of {commit}"


@dataclass(frozen=True)
class RereadResult:
    """The result of reading a suspected part again."""

    ref: CommitRef
    part: int
    error: str
    """One line: what is damaged, which host reads wrongly, or why this is not settled yet."""
    damaged: bool = False
    misread_by: str = ""
    """The host that found damage where there is none."""


def settle_suspicions(
    store: Store, rank: int, hosts: Sequence[str], *, stop: Stop = lambda: False
) -> Iterator[RereadResult]:
    """Read again, from the storage, what other hosts suspect and this rank is to look at; hosts: of each rank.

    A part that cannot be read now holds up no other; it is reported, and read again the next time. Raises
    StoreUnavailable if the suspicions cannot be listed, and StoppedError.
    """
    keys = [host_key(host) for host in hosts]
    own = [s for s in suspicions(store) if rereading_rank(s.part, s.host, keys) == rank]
    marked = damaged_commits(store) if own else frozenset[CommitRef]()
    for suspicion in own:
        if suspicion.ref in marked:
            dismiss_suspicions(store, suspicion)
            continue
        try:
            settled = _reread(store, suspicion, hosts[rank], stop)
        except StoppedError:
            raise
        except Exception as error:
            settled = RereadResult(suspicion.ref, suspicion.part, one_line(error))
        if settled is not None:
            yield settled


def _reread(store: Store, suspicion: Suspicion, host: str, stop: Stop) -> RereadResult | None:
    """None: there is nothing to report, such as for a commit that was pruned."""
    ref, part, evidence = suspicion.ref, suspicion.part, read_suspicion(store, suspicion)
    try:
        verify_part(store, ref, part, drop_cache=True, host=host, stop=stop)
    except CommitGoneError:
        dismiss_suspicions(store, suspicion)
        return None
    except SuspectedError:  # the first host's word was taken back meanwhile; this host's own is looked at next
        return None
    except DamagedCommitError as error:
        return RereadResult(ref, part, str(error), damaged=True)
    dismiss_suspicions(store, suspicion)
    if evidence is None:
        return None
    wrong = misread_message(evidence.host, host, part_label(part, ref.name), evidence.error)
    return RereadResult(ref, part, wrong, misread_by=evidence.host)
