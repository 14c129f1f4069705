"""Which hellos fit, what is said to those that do not, and how clocks are compared."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.gang.network.handshake import IncompatibleNodeError, Skew, read_hello, skew
from tests.campaign import examples
from tests.gang.agents import a_hello

pytestmark = pytest.mark.campaign


def greeted(**theirs: Any) -> None:
    hello = a_hello(node=2, nodes=3, nproc=4, hostname="two").model_copy(update=theirs)
    assert read_hello(hello.encoded(), a_hello(node=0, nodes=3, nproc=4, hostname="zero")) == hello


def test_a_node_of_the_same_gang_fits() -> None:
    greeted()
    greeted(node=1, port=7, wall=3.0)


@pytest.mark.parametrize(
    ("theirs", "line"),
    [
        (
            {"nproc": 2},
            "node 2 on two has nproc_per_node = 2, and node 0 on zero 4: all nodes need the same",
        ),
        ({"nodes": 4}, "node 2 on two has nodes = 4, and node 0 on zero 3: all nodes need the same"),
        (
            {"python": "3.8"},
            r"node 2 on two has Python = 3\.8, and node 0 on zero 3\.\d+: all nodes need the same",
        ),
        (
            {"convoy": "0.0.7"},
            r"a node has convoy 0\.0\.7 \(protocol 3\), and node 0 on zero .*: all nodes need the same",
        ),
        ({"protocol": 9}, r"a node has convoy .* \(protocol 9\), and node 0 on zero .*: all nodes need the same"),
        ({"to": 1}, "node 2 on two called node 1 and reached node 0 on zero: each node needs an address of its own"),
        ({"node": 3}, "node 3 on two connected to node 0 of 3"),
        ({"node": 0}, "node 0 on two connected to node 0 of 3"),
    ],
)
def test_a_node_that_does_not_fit_is_told_why_in_one_line(theirs: dict[str, Any], line: str) -> None:
    with pytest.raises(IncompatibleNodeError, match=f"^{line}") as raised:
        greeted(**theirs)
    assert "\n" not in str(raised.value)


def test_of_a_version_to_come_the_version_is_told_whatever_else_it_says() -> None:
    ours = a_hello(node=0, nodes=2, nproc=1)
    theirs = b'{"kind": "hello", "protocol": 3, "convoy": "9.0", "place": [1, 2]}'
    with pytest.raises(IncompatibleNodeError, match=r"a node has convoy 9.0 \(protocol 3\)"):
        read_hello(theirs, ours)


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1", b"[]", b'{"kind": "beat"}', b"\xff" * 40])
def test_what_is_no_hello_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        read_hello(data, a_hello(node=0, nodes=2, nproc=1))


@examples(300)
@given(st.floats(-1e4, 1e4), st.floats(0, 30), st.floats(0, 30), st.floats(0, 30))
def test_the_other_clock_is_within_the_error_whatever_the_delays(
    ahead: float, there: float, thinking: float, back: float
) -> None:
    sent = 1_800_000_000.0
    received = sent + there + ahead
    now = sent + there + thinking + back
    found = skew(sent, received, received + thinking, now)
    assert abs(found.seconds - ahead) <= found.error_seconds + 1e-5
    if found.warning(1, own_node=0):
        assert abs(ahead) > 4.9999


def test_clocks_that_differ_by_more_than_five_seconds_are_told_with_their_node() -> None:
    assert Skew(4.9, 0.01).warning(2, own_node=0) is None
    assert Skew(8.0, 3.5).warning(2, own_node=0) is None  # an answer that took 7 s
    assert (Skew(7.31, 0.01).warning(2, own_node=0) or "").startswith("the clock of node 2 is 7.3 s ahead of node 0's")
    assert (Skew(-9.0, 0.01).warning(2, own_node=0) or "").startswith("the clock of node 2 is 9.0 s behind node 0's")
