"""What a person is told of this machine's sources of notices."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from convoy.config.run import RunConfig
from convoy.drills.testbed.imds import ImdsStandIn
from convoy.gang.notices import machine
from convoy.gang.notices.poller import Standing
from convoy.launch.checks.preflight import notice_line


@pytest.fixture
def server() -> Iterator[ImdsStandIn]:
    with ImdsStandIn() as server:
        yield server


def firmware(sysfs: Path, **files: str) -> Path:
    folder = sysfs / "devices/virtual/dmi/id"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")
    return sysfs


@pytest.mark.parametrize(
    ("files", "ec2"),
    [
        ({"sys_vendor": "Amazon EC2", "board_vendor": "Amazon EC2"}, True),
        ({"sys_vendor": "Xen", "bios_vendor": "Xen", "board_vendor": "amazon"}, True),
        ({"sys_vendor": "Google", "board_vendor": "Google"}, False),
        ({}, False),
    ],
)
def test_an_instance_of_ec2_is_known_by_its_firmware(files: dict[str, str], ec2: bool, tmp_path: Path) -> None:
    assert machine.on_ec2(firmware(tmp_path, **files)) == ec2
    assert machine.has_metadata({}, tmp_path) == ec2


def test_elsewhere_nothing_is_asked_unless_the_environment_says_where(tmp_path: Path, server: ImdsStandIn) -> None:
    assert machine.standings({}, tmp_path) == []
    assert machine.in_words([]) == "no notice source: this is no EC2 instance"
    found = machine.standings({"AWS_EC2_METADATA_SERVICE_ENDPOINT": server.url}, tmp_path)
    assert machine.in_words(found) == "notices of this machine's end come from spot, rebalance"


def test_a_service_that_does_not_answer_is_told_with_what_may_help() -> None:
    found = [Standing("spot", True, False, "no answer for 2.5 s"), Standing("metaflow", True, False, "not there")]
    assert machine.in_words(found) == (
        "no notice source: no answer for 2.5 s; "
        "a pod needs --http-put-response-hop-limit 2 in its instance's metadata options"
    )


def test_before_a_run_it_is_told_where_the_gang_is_here(server: ImdsStandIn) -> None:
    local = RunConfig.model_validate({"root": "/x"})
    environ = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": server.url}
    assert notice_line(local, environ) == "convoy: notices of this machine's end come from spot, rebalance"
    nobody = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1"}
    assert notice_line(local, nobody).startswith("convoy: no notice source: ")
    assert notice_line(local, {}) is None or machine.on_ec2()
    cluster = local.cluster.model_copy(update={"backend": "kubernetes"})
    assert "each node tells" in notice_line(local.model_copy(update={"cluster": cluster}), environ)
