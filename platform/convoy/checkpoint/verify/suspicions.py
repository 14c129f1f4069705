"""Reading again what another host of the gang suspects: either the commit is damaged, or that host reads wrongly."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from convoy.checkpoint.commits import CommitGoneError
from convoy.checkpoint.errors import one_line
from convoy.checkpoint.format import DamagedCommitError
from convoy.checkpoint.verify.commit import Stop, StoppedError, SuspectedError, verify_part
from convoy.checkpoint.verify.marks import Suspicion, damaged, dismiss, host_key, read_suspicion, suspicions
from convoy.checkpoint.verify.second_host import misread, named, reader_of
from convoy.job.lineage import CommitRef
from convoy.storage import Store


@dataclass(frozen=True)
class Settled:
    """The result of reading a suspected part again."""

    ref: CommitRef
    part: int
    error: str
    """One line: what is damaged, which host reads wrongly, or why this is not settled yet."""
    damaged: bool = False
    misread_by: str = ""
    """The host that found damage where there is none."""


def settle(store: Store, rank: int, hosts: Sequence[str], *, stop: Stop = lambda: False) -> Iterator[Settled]:
    """Read again, from the storage, what other hosts suspect and this rank is to look at; hosts: of each rank.

    A part that cannot be read now holds up no other; it is reported, and read again the next time. Raises
    StoreUnavailable if the suspicions cannot be listed, and StoppedError.
    """
    keys = [host_key(host) for host in hosts]
    own = [s for s in suspicions(store) if reader_of(s.part, s.host, keys) == rank]
    marked = damaged(store) if own else frozenset[CommitRef]()
    for suspicion in own:
        if suspicion.ref in marked:
            dismiss(store, suspicion)
            continue
        try:
            settled = _read(store, suspicion, hosts[rank], stop)
        except StoppedError:
            raise
        except Exception as error:
            settled = Settled(suspicion.ref, suspicion.part, one_line(error))
        if settled is not None:
            yield settled


def _read(store: Store, suspicion: Suspicion, host: str, stop: Stop) -> Settled | None:
    """None: there is nothing to report, such as for a commit that was pruned."""
    ref, part, evidence = suspicion.ref, suspicion.part, read_suspicion(store, suspicion)
    try:
        verify_part(store, ref, part, drop_cache=True, host=host, stop=stop)
    except CommitGoneError:
        dismiss(store, suspicion)
        return None
    except SuspectedError:  # the first host's word was taken back meanwhile; this host's own is looked at next
        return None
    except DamagedCommitError as error:
        return Settled(ref, part, str(error), damaged=True)
    dismiss(store, suspicion)
    if evidence is None:
        return None
    wrong = misread(evidence.host, host, named(part, ref.name), evidence.error)
    return Settled(ref, part, wrong, misread_by=evidence.host)
