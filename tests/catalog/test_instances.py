"""The instance table says what AWS says."""

import math
import re
from collections.abc import Iterator
from typing import Any, Literal

import boto3
import pytest
from moto import mock_aws

from convoy.catalog import load_table
from convoy.catalog.instances import (
    MONTH_SECONDS,
    Instance,
    instance,
    instance_names,
    instance_with_gpu,
    interruption_band,
    mtbf_seconds,
)
from convoy.config.errors import ConfigError

Description = dict[str, Any]


@pytest.fixture(scope="module")
def aws() -> Iterator[dict[str, Description]]:
    """AWS's own description of each type of the catalog, as moto carries it."""
    credentials = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    with mock_aws():
        client = boto3.client("ec2", region_name="us-east-1", **credentials)
        found = client.describe_instance_types(InstanceTypes=instance_names())["InstanceTypes"]
        yield {str(one["InstanceType"]): dict(one) for one in found}


@pytest.mark.processes
@pytest.mark.parametrize("name", instance_names())
def test_host_is_as_aws_describes_it(name: str, aws: dict[str, Description]) -> None:
    facts, theirs = instance(name), aws[name]
    assert facts.vcpus == theirs["VCpuInfo"]["DefaultVCpus"]
    assert facts.memory_gib * 1024 == theirs["MemoryInfo"]["SizeInMiB"]
    assert facts.ebs_mbps == theirs["EbsInfo"]["EbsOptimizedInfo"]["BaselineBandwidthInMbps"]
    disks = [(disk["Count"], disk["SizeInGB"]) for disk in theirs.get("InstanceStorageInfo", {}).get("Disks", [])]
    assert [(facts.nvme_count, facts.nvme_gb)] == (disks or [(0, 0)])


@pytest.mark.parametrize("name", instance_names())
def test_gpus_are_as_aws_describes_them(name: str, aws: dict[str, Description]) -> None:
    facts = instance(name).gpu
    if facts is None:
        assert "GpuInfo" not in aws[name]
        return
    (theirs,) = aws[name]["GpuInfo"]["Gpus"]
    assert (facts.name, facts.count) == (theirs["Name"], theirs["Count"])
    assert facts.memory_mib == theirs["MemoryInfo"]["SizeInMiB"]
    assert facts.memory_mib * facts.count == aws[name]["GpuInfo"]["TotalGpuMemoryInMiB"]


@pytest.mark.parametrize("name", instance_names())
def test_network_is_as_aws_describes_it(name: str, aws: dict[str, Description]) -> None:
    facts, theirs = instance(name), aws[name]["NetworkInfo"]
    assert facts.efa_interfaces == theirs.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0)
    assert facts.network_gbps == sustained_gbps(theirs)
    assert facts.network_cards == theirs["MaximumNetworkCards"]
    assert {card["MaximumNetworkInterfaces"] for card in theirs["NetworkCards"]} == {facts.interfaces_per_card}
    assert facts.ipv4_per_interface == theirs["Ipv4AddressesPerInterface"]


@pytest.mark.parametrize("backend", ["batch", "kubernetes"])
@pytest.mark.parametrize("name", instance_names())
def test_machines_of_a_gang_get_every_adapter_where_aws_lets_it_be(
    name: str, backend: Literal["batch", "kubernetes"], aws: dict[str, Description]
) -> None:
    cards = {card["NetworkCardIndex"]: card for card in aws[name]["NetworkInfo"]["NetworkCards"]}
    found = instance(name).interfaces(backend)
    assert (found[0].network_card_index, found[0].device_index) == (0, 0)
    assert found[0].interface_type != "efa-only"  # it has the address of the machine
    assert len({(one.network_card_index, one.device_index) for one in found}) == len(found)
    adapters = [one for one in found if one.interface_type != "interface"]
    assert len(adapters) == aws[name]["NetworkInfo"].get("EfaInfo", {}).get("MaximumEfaInterfaces", 0)
    assert len({one.network_card_index for one in adapters}) == len(adapters)  # AWS takes one for each card
    for card, facts in cards.items():
        on_card = [one for one in found if one.network_card_index == card]
        # Batch attaches another one to card 0 for each task of a multi-node job.
        assert len(on_card) + (backend == "batch" and card == 0) <= facts["MaximumNetworkInterfaces"]
        assert {one.interface_type for one in on_card} <= set(facts["InterfaceTypes"])


def sustained_gbps(network: Description) -> float:
    """AWS's words, e.g. `4x 100 Gigabit`; of types that only burst (`Up to 10 Gigabit`) the base line."""
    words = re.fullmatch(r"(?:(\d+)x )?([\d.]+) Gigabit", network["NetworkPerformance"])
    if words is None:
        return float(network["NetworkCards"][0]["BaselineBandwidthInGbps"])
    return int(words[1] or 1) * float(words[2])


@pytest.mark.parametrize(
    "begin",
    ["p4d.24", "p4de.24", "p5.48", "p5e.48", "p5en.48", "p6-b200.48", "g5.x", "g5.12", "g5.48", "g6.", "g6e.", "c7i."],
)
def test_each_type_and_family_that_is_promised_is_there(begin: str) -> None:
    assert any(name.startswith(begin) for name in instance_names())


@pytest.mark.parametrize(
    ("name", "gb_per_second"),
    [
        ("p4d.24xlarge", 300),
        ("p5.48xlarge", 450),
        ("p5en.48xlarge", 450),
        ("p6-b200.48xlarge", 900),
        ("g5.48xlarge", 0),
    ],
)
def test_nvlink_is_counted_in_one_direction(name: str, gb_per_second: float) -> None:
    assert instance(name).nvlink_gb_per_second == gb_per_second


def test_only_gpus_that_have_peers_have_nvlink() -> None:
    # AWS does not describe it; what it says of these chips' boards is that NVLink joins all eight GPUs.
    for name in instance_names():
        facts = instance(name)
        assert (facts.nvlink_gb_per_second > 0) == (facts.gpus == 8 and name.startswith("p"))


def test_p4d_has_4_adapters_and_p5_has_32() -> None:
    assert instance("p4d.24xlarge").efa_interfaces == 4
    assert instance("p5.48xlarge").efa_interfaces == 32


def test_an_instance_cannot_be_changed() -> None:
    facts: Any = instance("g5.xlarge")
    with pytest.raises(ValueError, match="frozen"):
        facts.vcpus = 8


def test_names_are_sorted_and_each_can_be_read() -> None:
    names = instance_names()
    assert names == sorted(names)
    assert all(isinstance(instance(name), Instance) for name in names)


@pytest.mark.parametrize(
    ("gpu", "gib", "name"),
    [
        ("A100", 40, "p4d.24xlarge"),
        ("A100", 80, "p4de.24xlarge"),
        ("H100", 80, "p5.48xlarge"),
        ("L4", 24, "g6.48xlarge"),
    ],
)
def test_the_usual_machine_of_a_gpu_has_most_of_it(gpu: str, gib: int, name: str) -> None:
    machine = instance_with_gpu(gpu, gib * 2**30)
    assert machine is not None
    assert machine.name == name


def test_a_gpu_that_is_not_rented_has_no_usual_machine() -> None:
    assert instance_with_gpu("MI300", 192 * 2**30) is None


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("p4d.24xlage", "did you mean p4d.24xlarge?"),
        ("p5-48xlarge", "did you mean p5.48xlarge?"),
        ("p5", "did you mean p5.48xlarge or p5.4xlarge?"),
        ("p4", "did you mean p4d.24xlarge or p4de.24xlarge?"),
        ("P4D", "did you mean p4d.24xlarge?"),
        ("p5.84xlarge", "did you mean p5.48xlarge or p5.4xlarge?"),
        ("m7i", f"known: {', '.join(instance_names())}"),
    ],
)
def test_a_misspelt_type_or_a_family_is_refused_with_those_that_may_be_meant(name: str, meant: str) -> None:
    with pytest.raises(ConfigError) as refused:
        instance(name)
    assert str(refused.value).startswith(f"cluster.instance_type = {name}: not in the catalog; {meant}")


def test_a_band_has_its_day_and_source() -> None:
    found = interruption_band("p4d.24xlarge")
    assert found is not None
    assert (found.low, found.high, str(found.date)) == (0.05, 0.10, "2026-02-24")
    assert "Spot Instance Advisor" in found.source


def test_every_band_is_of_a_machine_of_the_catalog() -> None:
    for row in load_table("interruptions")["interruptions"]:
        assert instance(row["instance"]).name == row["instance"]
        found = interruption_band(row["instance"])
        assert found is not None
        assert found.low < found.high


def test_nothing_is_known_of_other_machines() -> None:
    assert interruption_band("c7i.large") is None


def test_what_is_lost_in_a_month_gives_the_rate() -> None:
    alone = mtbf_seconds(0.10, 1)
    assert 1 - math.exp(-MONTH_SECONDS / alone) == pytest.approx(0.10)
    assert mtbf_seconds(0.10, 8) == pytest.approx(alone / 8)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_share_that_tells_no_rate_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        mtbf_seconds(share, 1)
