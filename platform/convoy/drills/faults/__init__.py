"""What drills do to a gang: one class per drill. To add one, write it in this folder and list it in `DRILLS`."""

from convoy.config.errors import ConfigError, name_hint
from convoy.drills.fault import Fault
from convoy.drills.faults.node import Node0Kill, NodeKill, Partition, PartitionHeal
from convoy.drills.faults.notice import NoticeThenNothing, RebalanceNotice, SigtermNotice, SpotNotice
from convoy.drills.faults.save import KillDuringRestore, KillDuringSave
from convoy.drills.faults.storage import StorageFull, StorageHang
from convoy.drills.faults.worker import (
    DoubleFault,
    NodeSlowdown,
    NoFault,
    NotANumber,
    OutOfMemory,
    RandomFaults,
    WorkerError,
    WorkerExit0,
    WorkerHang,
    WorkerKill,
    WorkerStop,
)

DRILLS: tuple[type[Fault], ...] = (
    WorkerKill,
    WorkerStop,
    WorkerHang,
    WorkerError,
    WorkerExit0,
    OutOfMemory,
    NotANumber,
    NodeSlowdown,
    DoubleFault,
    NoFault,
    NodeKill,
    Node0Kill,
    Partition,
    PartitionHeal,
    SpotNotice,
    NoticeThenNothing,
    RebalanceNotice,
    SigtermNotice,
    StorageFull,
    StorageHang,
    KillDuringSave,
    KillDuringRestore,
    RandomFaults,
)


def drill_named(error_key: str, name: str) -> type[Fault]:
    """The drill of this name. Raises ConfigError, which begins with the key that names the drill."""
    drills = {drill.name: drill for drill in DRILLS}
    if name not in drills:
        raise ConfigError(f"{error_key} {name}: no such drill; {name_hint(name, drills)}")
    return drills[name]
