"""How either backend starts the machines of a gang, and what they must have: one zone, one placement group, the network
interfaces of the type, traffic among themselves, notices that reach a container."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from convoy.catalog.instances import Interface
from convoy.infra.account import Account, Json
from convoy.infra.findings import Answer, Check, answer_or_none, judge

MIN_HOP_LIMIT = 2
"""Answers of the instance's metadata service reach the machine after one hop, and a container after two."""


@dataclass(frozen=True)
class Machines:
    """What a launch template or a node class says."""

    where: str
    """The template or class, by its name."""
    subnets: Sequence[Json]
    """As EC2 describes them."""
    security_groups: Sequence[Json]
    """Those of every interface, as EC2 describes them."""
    interfaces: frozenset[Interface]
    placement_group: Json | None
    """As EC2 describes it."""
    reservation: str | None
    metadata_enabled: bool
    """Whether the instance's metadata service answers at all."""
    hop_limit: int | None
    """Of that service; None: not set."""
    tokens: str | None
    """`required` or `optional`: whether that service answers a request without a token."""


@dataclass(frozen=True)
class MachineAccount(Account):
    """An account whose backend says how it starts the machines."""

    @cached_property
    def machines(self) -> Machines | None:
        """None: the template or class is missing."""
        raise NotImplementedError

    @property
    def zones(self) -> frozenset[str]:
        """Zones in which machines may start."""
        return (
            frozenset(subnet["AvailabilityZone"] for subnet in self.machines.subnets) if self.machines else frozenset()
        )


def if_known(look: Callable[[MachineAccount, Machines], Answer | None]) -> Callable[[MachineAccount], Answer | None]:
    """The check, made only where it is known how machines are started."""
    return lambda account: None if account.machines is None else look(account, account.machines)


def zone(account: MachineAccount, machines: Machines) -> Answer:
    name = account.machine.name
    wanted, fix = f"one zone that offers {name}", "put the subnets of the machines in one zone that offers the type"
    if len(account.zones) != 1:
        return Answer("missing", f"{', '.join(sorted(account.zones)) or 'no subnet'} ({machines.where})", wanted, fix)
    (only,) = account.zones
    filters = _filters({"instance-type": [name], "location": [only]})
    offers = account.aws("ec2").describe_instance_type_offerings(LocationType="availability-zone", Filters=filters)
    offered = bool(offers["InstanceTypeOfferings"])
    return judge(offered, f"{only} {'offers' if offered else 'does not offer'} {name}", wanted, fix)


def route(account: MachineAccount, machines: Machines) -> Answer | None:
    """A task of a multi-node job, and a machine with several interfaces, get no public address."""
    if not machines.subnets:
        return None
    targets = {_default_target(_route_table(account, subnet)) for subnet in machines.subnets}
    good = not any(target == "none" or target.startswith("igw-") for target in targets)
    wanted = "a default route that needs no public address, such as to a NAT gateway"
    return judge(good, ", ".join(sorted(targets)), wanted, "use private subnets with a NAT gateway")


def s3_gateway_endpoint(account: MachineAccount, machines: Machines) -> Answer | None:
    if not machines.subnets:
        return None
    tables = {_route_table(account, subnet).get("RouteTableId") for subnet in machines.subnets}
    service = f"com.amazonaws.{account.cluster.region}.s3"
    filters = _filters({"service-name": [service], "vpc-endpoint-type": ["Gateway"]})
    found = account.aws("ec2").describe_vpc_endpoints(Filters=filters)["VpcEndpoints"]
    there = (endpoint for endpoint in found if endpoint["State"] not in ("deleting", "deleted"))
    served = {table for endpoint in there for table in endpoint.get("RouteTableIds", ())}
    wanted = "a gateway endpoint of S3, so that checkpoints do not pass the NAT gateway, which costs"
    if tables <= served:
        return Answer("ok", "there is one", wanted)
    return Answer("warning", "there is none", wanted, "add it to the route table of the subnets")


def _route_table(account: MachineAccount, subnet: Json) -> Json:
    """The table that is associated with the subnet, else the main one of its VPC; empty: there is none."""
    ec2 = account.aws("ec2")
    own = {"association.subnet-id": [subnet["SubnetId"]]}
    main = {"vpc-id": [subnet["VpcId"]], "association.main": ["true"]}
    for filters in (own, main):
        tables: list[Json] = ec2.describe_route_tables(Filters=_filters(filters))["RouteTables"]
        if tables:
            return tables[0]
    return {}


def _default_target(table: Json) -> str:
    """The gateway of the default route; `none` where there is none, or it was deleted."""
    for route in table.get("Routes", ()):
        if route.get("DestinationCidrBlock") == "0.0.0.0/0" and route.get("State") != "blackhole":
            return next((str(route[key]) for key in route if key.endswith(("GatewayId", "InterfaceId"))), "none")
    return "none"


def interfaces(account: MachineAccount, machines: Machines) -> Answer:
    """Karpenter attaches an adapter to each card itself where a node class names no interfaces."""
    on_batch = account.cluster.backend == "batch"
    wanted, found = frozenset(account.machine.interfaces("batch" if on_batch else "kubernetes")), machines.interfaces
    if not found and not on_batch:
        return Answer("ok", "none is named, so Karpenter chooses them")
    return judge(
        _has_layout(found, wanted, on_batch), layout_text(found), layout_text(wanted),
        f"give {machines.where} these network interfaces",
    )  # fmt: skip


def _has_layout(found: frozenset[Interface], wanted: frozenset[Interface], on_batch: bool) -> bool:
    """Whether each card has its adapter, whatever its place there, and the first interface takes part in IP. On AWS
    Batch, a task brings an interface of its own, for which card 0 must have a place."""

    def adapters(layout: frozenset[Interface]) -> list[int]:
        return sorted(each.network_card_index for each in layout if each.interface_type != "interface")

    def on_first_card(layout: frozenset[Interface]) -> int:
        return sum(each.network_card_index == 0 for each in layout)

    first = {each.interface_type for each in found if (each.network_card_index, each.device_index) == (0, 0)}
    return (
        adapters(found) == adapters(wanted)
        and first in ({"interface"}, {"efa"})
        and (not on_batch or on_first_card(found) <= on_first_card(wanted))
    )


def layout_text(layout: Iterable[Interface]) -> str:
    """The interfaces in one line, such as `efa on card 0, device 0; efa-only on cards 1-31, device 0`."""
    parts = []
    for (kind, device), alike in groupby(sorted(layout, key=_kind_first), key=lambda each: _kind_first(each)[:2]):
        cards = [each.network_card_index for each in alike]
        runs = [
            [number for _, number in run] for _, run in groupby(enumerate(cards), key=lambda pair: pair[1] - pair[0])
        ]
        text = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
        parts.append(f"{kind} on card{'s' if len(cards) > 1 else ''} {text}, device {device}")
    return "; ".join(parts) or "none is named"


def _kind_first(interface: Interface) -> tuple[str, int, int]:
    return interface.interface_type, interface.device_index, interface.network_card_index


def placement_group(account: MachineAccount, machines: Machines) -> Answer:
    wanted, fix = "an available cluster placement group", "apply the stack again, or name one for the machines"
    if account.cluster.market == "capacity_block" or machines.reservation:
        return Answer("ok", "not looked at: the reservation decides where its machines are")
    group = machines.placement_group
    if group is None:
        return Answer("missing", f"none, or one that does not exist ({machines.where})", wanted, fix)
    good = (group.get("Strategy"), group.get("State")) == ("cluster", "available")
    return judge(good, f"{group.get('GroupName')}: {group.get('Strategy')}, {group.get('State')}", wanted, fix)


def security_group(account: MachineAccount, machines: Machines) -> Answer:
    """0.0.0.0/0 does not let EFA traffic out: only the group itself, by its id, does."""
    wanted = "all traffic from and to the group itself, by its id"
    lacking = {
        group["GroupId"]: [
            way
            for way, rules in (("in", group["IpPermissions"]), ("out", group["IpPermissionsEgress"]))
            if not _lets_itself(rules, group["GroupId"])
        ]
        for group in machines.security_groups
    }
    if good := [name for name, ways in lacking.items() if not ways]:
        return Answer("ok", f"{good[0]}: in and out", wanted)
    seen = "; ".join(f"{name}: not {' and not '.join(ways)}" for name, ways in lacking.items())
    return Answer("missing", seen or f"no group that all interfaces have ({machines.where})", wanted, "add the rules")


def _lets_itself(rules: Iterable[Json], group: str) -> bool:
    return any(
        rule["IpProtocol"] == "-1" and group in {pair.get("GroupId") for pair in rule.get("UserIdGroupPairs", ())}
        for rule in rules
    )


def reaches_itself(group: Json) -> bool:
    """Whether members of a group reach each other by IP: by its id, or by addresses."""

    def admits(rule: Json) -> bool:
        by_address = rule["IpProtocol"] == "-1" and bool(rule.get("IpRanges"))
        return by_address or _lets_itself([rule], group["GroupId"])

    return all(any(map(admits, rules)) for rules in (group["IpPermissions"], group["IpPermissionsEgress"]))


def instance_metadata(account: MachineAccount, machines: Machines) -> Answer:
    good = (machines.hop_limit or 0) >= MIN_HOP_LIMIT and machines.tokens == "required" and machines.metadata_enabled
    hops = "no hop limit" if machines.hop_limit is None else f"hop limit {machines.hop_limit}"
    hops = hops if machines.metadata_enabled else "disabled"
    return judge(
        good, f"{hops}, tokens {machines.tokens or 'not set'}",
        f"hop limit {MIN_HOP_LIMIT} or more, so that notices reach containers, and tokens required",
        f"set the metadata options of {machines.where}",
    )  # fmt: skip


def reservation(account: MachineAccount, machines: Machines) -> Answer:
    cluster, name = account.cluster, machines.reservation
    wanted = f"an active reservation of {cluster.nodes} {account.machine.name} or more in the machines' zone"
    if name is None:
        if cluster.market == "capacity_block":
            return Answer("missing", f"none ({machines.where})", wanted, "name the capacity block in the stack")
        return Answer("ok", f"none needed, {cluster.market}")
    answer = answer_or_none(
        lambda: account.aws("ec2").describe_capacity_reservations(CapacityReservationIds=[name]),
        "InvalidCapacityReservationId.NotFound",
    )
    if not answer or not answer["CapacityReservations"]:
        return Answer("missing", f"{name}: does not exist", wanted, "name a reservation of this account in the stack")
    found = answer["CapacityReservations"][0]
    zone, total, state = found["AvailabilityZone"], found["TotalInstanceCount"], found["State"]
    good = state == "active" and total >= cluster.nodes and found["InstanceType"] == account.machine.name
    seen = f"{name}: {state}, {total} {found['InstanceType']} in {zone}"
    if end := found.get("EndDate"):
        seen += f", until {end:%Y-%m-%d %H:%M} UTC"
    return judge(good and zone in account.zones, seen, wanted, "extend it, or name another in the stack")


def find_placement_group(account: Account, **selector: list[str]) -> Json | None:
    """By GroupNames or GroupIds."""
    unknown = ("InvalidPlacementGroup.Unknown", "InvalidPlacementGroupId.Malformed")
    answer = answer_or_none(lambda: account.aws("ec2").describe_placement_groups(**selector), *unknown)
    return answer["PlacementGroups"][0] if answer and answer["PlacementGroups"] else None


def find_subnets(account: Account, filters: Mapping[str, Sequence[str]]) -> list[Json]:
    """Those that all filters select; none where a filter has no value."""
    subnets: list[Json] = []
    if all(filters.values()):
        subnets = account.aws("ec2").describe_subnets(Filters=_filters(filters))["Subnets"]
    return subnets


def find_security_groups(account: Account, filters: Mapping[str, Sequence[str]]) -> list[Json]:
    """Those that all filters select; none where a filter has no value."""
    groups: list[Json] = []
    if all(filters.values()):
        groups = account.aws("ec2").describe_security_groups(Filters=_filters(filters))["SecurityGroups"]
    return groups


def _filters(values: Mapping[str, Sequence[str]]) -> list[Json]:
    return [{"Name": name, "Values": list(chosen)} for name, chosen in values.items()]


MACHINE_CHECKS: tuple[Check[MachineAccount], ...] = (
    Check("zone", if_known(zone)),
    Check("route", if_known(route)),
    Check("S3 gateway endpoint", if_known(s3_gateway_endpoint)),
    Check("interfaces", if_known(interfaces)),
    Check("placement group", if_known(placement_group)),
    Check("security group", if_known(security_group)),
    Check("instance metadata", if_known(instance_metadata)),
    Check("reservation", if_known(reservation)),
)
"""Checks of both backends."""
