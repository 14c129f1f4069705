"""A port that no endpoint can have is refused before anything starts."""

import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from convoy.config.errors import ConfigError
from convoy.config.run import RunConfig
from convoy.launch.monitor import ports
from convoy.launch.monitor.ports import check_monitor, listen_everywhere, node_port
from tests.gang.tasks import a_node


def config(port: int | None, nodes: int = 1) -> RunConfig:
    return RunConfig.model_validate({"monitor": {"port": port}, "cluster": {"nodes": nodes}})


@pytest.fixture
def taken() -> Iterator[int]:
    with listen_everywhere(0) as listener:
        yield listener.getsockname()[1]


def test_nodes_on_one_host_take_ports_one_after_the_other() -> None:
    node = a_node(index=3, nodes=4)
    assert node_port(config(9400), node) == 9403
    assert node_port(config(9400), replace(node, shares_host=False)) == 9400
    assert node_port(config(None), node) is None


def test_without_a_port_nothing_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "find_spec", lambda name: None)
    check_monitor(config(None))
    with pytest.raises(ConfigError) as raised:
        check_monitor(config(9400))
    assert str(raised.value) == "monitor.port = 9400: needs the extra: pip install 'metaflow-convoy[prometheus]'"


def test_a_port_that_is_taken_is_named_in_one_line(taken: int) -> None:
    with pytest.raises(ConfigError) as raised:
        check_monitor(config(taken))
    assert str(raised.value) == (
        f"monitor.port = {taken}: it cannot be used on {socket.gethostname()} (Address already in use); "
        "choose another port"
    )
    with pytest.raises(ConfigError, match=rf"^monitor.port = {taken - 1}: port {taken}, for node 1, cannot be used"):
        check_monitor(config(taken - 1, nodes=2))


def test_every_node_s_port_must_exist() -> None:
    with pytest.raises(ConfigError) as raised:
        check_monitor(config(65535, nodes=3))
    assert str(raised.value) == "monitor.port = 65535: must be at most 65533, as each of 3 nodes takes a port here"


def test_the_port_of_a_listener_that_has_ended_can_be_used_again(taken: int) -> None:
    with listen_everywhere(0) as listener:
        free = listener.getsockname()[1]
    check_monitor(config(free))
    check_monitor(config(free))
