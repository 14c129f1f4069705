"""Whether two jobs came to the same state, bit for bit: their commits' bytes are compared, without torch."""

import hashlib
from collections.abc import Sequence

from convoy.checkpoint.commits import describe
from convoy.checkpoint.format import Commit, DamagedCommitError, PartRecord
from convoy.job.lineage import newest_commit, places, read_history
from convoy.storage import Store
from convoy.storage.checksum import crc32c

State = dict[str, str]
"""A digest for each box of a tensor and for each plain value, by what it is of."""


def final_state(tiers: Sequence[Store]) -> tuple[Commit | None, State]:
    """The newest commit that counts on any tier, the root first, and its state; without one, nothing. Raises
    StoreUnavailable, and DamagedCommitError where it is not what was written."""
    history = read_history(tiers[0], tiers[1:])
    newest = newest_commit(history)
    if newest is None:
        return None, {}
    store = tiers[places(history, newest)[0]]
    commit, parts = describe(store, newest)
    state: State = {}
    for part in parts:
        state |= _state_of(store, commit, part)
    return commit, state


def differing(one: State, other: State) -> list[str]:
    """What is not the same in both, or only in one of them."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def _state_of(store: Store, commit: Commit, part: PartRecord) -> State:
    files = [store.read(commit.shards + file.name) for file in part.files]
    for file, data in zip(part.files, files, strict=True):
        chunks = [data[start : start + part.chunk_bytes] for start in range(0, len(data), part.chunk_bytes)]
        if [crc32c(chunk) for chunk in chunks] != file.crc32c:
            raise DamagedCommitError(f"{store.uri}/{commit.shards}{file.name}: not what was written")
    found = {}
    for shard in part.shards:
        data = files[shard.file][shard.start : shard.start + shard.bytes]
        box = f"{shard.name} {shard.dtype} {shard.shape}: {shard.size} from {shard.offset}"
        found[box] = hashlib.sha256(data).hexdigest()
    return found | {f"value {value.name}": repr(value.value) for value in part.values}
