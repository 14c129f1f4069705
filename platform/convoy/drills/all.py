"""All drills there are, by name."""

from convoy.drills import (
    network_faults,
    node_faults,
    notice_faults,
    random_faults,
    save_faults,
    storage_faults,
    worker_faults,
)
from convoy.drills.fault import Fault

DRILLS: dict[str, type[Fault]] = {
    fault.name: fault
    for module in (
        worker_faults,
        node_faults,
        network_faults,
        notice_faults,
        storage_faults,
        save_faults,
        random_faults,
    )
    for fault in module.FAULTS
}
