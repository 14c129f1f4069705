"""Power, and the energy of a training. Pure."""

from convoy.audit.facts import Run
from convoy.audit.quantities.number import Span
from convoy.audit.solver import Law

_AROUND = Span(1.0, 1.0, 2.0)
"""What hosts and the building take on top of the GPUs, which a page's energy may hold and its power not."""


def laws(run: Run) -> list[Law]:
    """Of one run."""
    q = run.quantity
    return [
        Law(((q("power"), 1), (q("power_per_gpu"), -1), (q("gpus"), -1))),
        Law(((q("energy"), 1), (q("power"), -1), (q("time"), -1)), _AROUND),
        Law(((q("energy"), 1), (q("power_per_gpu"), -1), (q("gpu_hours"), -1)), _AROUND),
        Law(((q("tokens_per_joule"), 1), (q("power"), 1), (q("throughput"), -1))),
        Law(((q("tokens_per_joule"), 1), (q("energy"), 1), (q("tokens"), -1)), _AROUND),
    ]
