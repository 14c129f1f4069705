"""Which hellos fit, what is said to those that do not, how clocks are compared, and who proves to know the token."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.gang.network.handshake import NONCE_BYTES, Authenticator, IncompatibleNodeError, Skew, read_hello, skew
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
        ({"nproc": 2}, "node 2 on two has nproc_per_node = 2, and node 0 on zero 4: all nodes need the same"),
        ({"nodes": 4}, "node 2 on two has nodes = 4, and node 0 on zero 3: all nodes need the same"),
        ({"python": "3.8"}, r"node 2 on two has Python = 3\.8, and node 0 on zero 3\.\d+: all nodes need the same"),
        (
            {"convoy": "0.0.7"},
            r"a node has convoy 0\.0\.7 \(protocol 4\), and node 0 on zero .*: all nodes need the same",
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
    theirs = b'{"kind": "hello", "protocol": 4, "convoy": "9.0", "place": [1, 2]}'
    with pytest.raises(IncompatibleNodeError, match=r"a node has convoy 9.0 \(protocol 4\)"):
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


HELLO = b"node 3, to node 1"


def connection(token: str = "ours", others: str = "ours") -> tuple[Authenticator, Authenticator]:
    """Both ends, which have exchanged their nonces."""
    caller, called = Authenticator(token, "caller"), Authenticator(others, "called")
    caller.set_challenge(called.nonce)
    called.set_challenge(caller.nonce)
    return caller, called


def test_both_ends_believe_each_other_by_the_token() -> None:
    caller, called = connection()
    assert called.unseal_and_verify(caller.seal(HELLO)) == (HELLO, True)
    assert caller.unseal_and_verify(called.seal(b"welcome")) == (b"welcome", True)


@pytest.mark.parametrize("other", ["", "other", "tok\u00e4n", "ours "])
def test_another_token_proves_nothing(other: str) -> None:
    caller, called = connection(others=other)
    assert called.unseal_and_verify(caller.seal(HELLO)) == (HELLO, False)
    assert caller.unseal_and_verify(called.seal(b"no")) == (b"no", False)


def test_a_proof_is_of_no_use_on_another_connection() -> None:
    overheard = connection()[0].seal(HELLO)
    _, called = connection()
    assert called.unseal_and_verify(overheard) == (HELLO, False)


def test_a_proof_that_is_sent_back_proves_nothing() -> None:
    caller, called = connection()
    assert caller.unseal_and_verify(caller.seal(HELLO)) == (HELLO, False)
    echoed = Authenticator("ours", "caller")
    echoed.set_challenge(echoed.nonce)
    assert echoed.unseal_and_verify(echoed.seal(HELLO)) == (HELLO, False)
    assert called.unseal_and_verify(called.seal(HELLO)) == (HELLO, False)


def test_a_proof_is_of_one_message() -> None:
    caller, called = connection()
    sealed = caller.seal(HELLO)
    for at in range(len(sealed)):
        changed = bytearray(sealed)
        changed[at] ^= 1
        assert not called.unseal_and_verify(bytes(changed))[1]
    assert not called.unseal_and_verify(sealed[:20])[1]


@pytest.mark.parametrize("nonce", [b"", bytes(NONCE_BYTES - 1), bytes(NONCE_BYTES + 1)])
def test_what_is_no_nonce_is_refused(nonce: bytes) -> None:
    with pytest.raises(ValueError, match="a nonce of 32 bytes was expected"):
        Authenticator("ours", "called").set_challenge(nonce)
