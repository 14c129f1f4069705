"""All drills there are, by name."""

from convoy.drills.fault import Fault
from convoy.drills.faults import network, node, notice, random_times, save, storage, worker

DRILLS: dict[str, type[Fault]] = {
    fault.name: fault
    for module in (
        worker,
        node,
        network,
        notice,
        storage,
        save,
        random_times,
    )
    for fault in module.FAULTS
}
