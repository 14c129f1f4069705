"""What the network suite measures."""

import re
from typing import Annotated, Literal, NamedTuple, get_args

from pydantic import Field, StringConstraints, model_validator

from convoy.config.base import FrozenConfig

Operation = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "gather", "scatter"
]

OPERATIONS: tuple[Operation, ...] = get_args(Operation)

IN_AND_OUT_OF_PLACE: frozenset[Operation] = frozenset({"all_gather", "reduce_scatter"})
"""Collectives that the backend offers both ways; in place, a rank's part is where it belongs in the whole buffer."""

LinkKind = Literal["pairs", "rails", "one-sided", "transports", "copies"]

LINK_KINDS: tuple[LinkKind, ...] = get_args(LinkKind)

NetworkDtype = Literal["fp32", "bf16", "fp16", "fp64", "int32"]

NcclSetting = Annotated[
    str,
    StringConstraints(pattern=r"^((Ring|Tree)/(LL|LL128|Simple)|(CollNetDirect|CollNetChain|NVLS|NVLSTree)/Simple)$"),
]
"""A value of NCCL_ALGO and one of NCCL_PROTO with which NCCL can carry out all_reduce, by the names of NCCL 2.24."""

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}

_SIZES = re.compile(r"(\d+)([KMG]?):(\d+)([KMG]?)(?::(\d+))?")


class SizeRange(NamedTuple):
    """Sizes from `first` to `last` bytes, each `factor` times the one before, as nccl-tests' -b, -e and -f."""

    first: int
    last: int
    factor: int

    def sizes(self) -> list[int]:
        """In bytes, from small to large."""
        sizes = [self.first]
        while sizes[-1] * self.factor <= self.last:
            sizes.append(sizes[-1] * self.factor)
        return sizes


def parse_sizes(text: str) -> SizeRange:
    """`8:64M:4` as a range; units are powers of 1,024, and the factor is 2 if none is given. Raises ValueError."""
    match = _SIZES.fullmatch(text)
    if match is None:
        raise ValueError("must be START:END or START:END:FACTOR, such as 8:64M or 1K:1G:4")
    first, last = int(match[1]) * _UNITS[match[2]], int(match[3]) * _UNITS[match[4]]
    factor = int(match[5] or 2)
    if not 1 <= first <= last:
        raise ValueError("START must be at least 1 byte and at most END")
    if factor < 2:
        raise ValueError("FACTOR must be at least 2")
    return SizeRange(first, last, factor)


class NetworkConfig(FrozenConfig):
    """The collectives and links that the network suite measures."""

    operations: tuple[Operation, ...] = Field(("all_reduce", "all_gather", "reduce_scatter", "all_to_all"))
    """Collectives to measure, by the backend and by each algorithm of Convoy's own. Empty: links alone."""
    links: tuple[LinkKind, ...] = ("pairs",)
    """What is measured of the links themselves. `pairs`: between every two hosts, latency, bandwidth one way and both
    ways, message rate, and the bandwidth from half of the hosts to the other half. `rails`: one buffer split over
    several interfaces, and many spread over them. `one-sided`: RDMA's WRITE and READ by NIXL. `transports`: what
    iperf3, fi_pingpong and ib_write_bw find between two hosts. `copies`: between the memory of a host and of its GPUs,
    pinned and pageable. Empty: collectives alone."""
    nccl_settings: tuple[NcclSetting, ...] = ()
    """Algorithms and protocols of NCCL with which all_reduce is compared with NCCL's own choice, as ALGORITHM/PROTOCOL,
    such as Ring/LL128 or Tree/Simple. NCCL reads them when a process starts, so each has six gangs of its own; only on
    GPUs."""
    sizes: str = "8:64M:4"
    """Sizes of the whole buffer, START:END or START:END:FACTOR: from START to END bytes, each FACTOR (2 if it is not
    given) times the one before. Units K, M and G are powers of 1,024."""
    dtype: NetworkDtype = "fp32"
    """Element type of the buffers."""
    link_gbps: float | None = Field(None, gt=0)
    """Rate of each host's network in each direction, in 10^9 bits per second, against which bandwidths are shown; null:
    the catalog's for `cluster.instance_type`, or if it has none, no share is shown."""

    @model_validator(mode="after")
    def _check(self) -> "NetworkConfig":
        try:
            parse_sizes(self.sizes)
        except ValueError as error:
            raise ValueError(f"sizes = {self.sizes}: {error}") from None
        if not self.operations and not self.links:
            raise ValueError("operations = []: only with links, or nothing is measured")
        lists = {"operations": self.operations, "links": self.links, "nccl_settings": self.nccl_settings}
        for key, names in lists.items():
            if len(set(names)) < len(names):
                raise ValueError(f"{key} = {', '.join(names)}: must differ from each other")
        return self

    @property
    def all_sizes(self) -> list[int]:
        """Sizes of the whole buffer in bytes, from small to large."""
        return parse_sizes(self.sizes).sizes()
