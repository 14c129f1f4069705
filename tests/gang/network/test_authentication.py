"""Proofs of the token: who knows it is believed, on this connection and in this role alone."""

import pytest

from convoy.gang.network.authentication import NONCE_BYTES, Authenticator

HELLO = b"node 3, to node 1"


def connection(token: str = "ours", others: str = "ours") -> tuple[Authenticator, Authenticator]:
    """Both ends, which have exchanged their nonces."""
    caller, called = Authenticator(token, "caller"), Authenticator(others, "called")
    caller.set_challenge(called.nonce)
    called.set_challenge(caller.nonce)
    return caller, called


def test_both_ends_believe_each_other_by_the_token() -> None:
    caller, called = connection()
    assert called.unseal(caller.seal(HELLO)) == (HELLO, True)
    assert caller.unseal(called.seal(b"welcome")) == (b"welcome", True)


def test_the_token_is_in_nothing_that_is_sent() -> None:
    caller, _ = connection("the secret of all", "the secret of all")
    assert b"secret" not in caller.nonce + caller.seal(HELLO)


@pytest.mark.parametrize("other", ["", "other", "tok\u00e4n", "ours "])
def test_another_token_proves_nothing(other: str) -> None:
    caller, called = connection(others=other)
    assert called.unseal(caller.seal(HELLO)) == (HELLO, False)
    assert caller.unseal(called.seal(b"no")) == (b"no", False)


def test_a_proof_is_of_no_use_on_another_connection() -> None:
    overheard = connection()[0].seal(HELLO)
    _, called = connection()
    assert called.unseal(overheard) == (HELLO, False)


def test_a_proof_that_is_sent_back_proves_nothing() -> None:
    caller, called = connection()
    assert caller.unseal(caller.seal(HELLO)) == (HELLO, False)
    echoed = Authenticator("ours", "caller")
    echoed.set_challenge(echoed.nonce)
    assert echoed.unseal(echoed.seal(HELLO)) == (HELLO, False)
    assert called.unseal(called.seal(HELLO)) == (HELLO, False)


def test_a_proof_is_of_one_message() -> None:
    caller, called = connection()
    sealed = caller.seal(HELLO)
    for at in range(len(sealed)):
        changed = bytearray(sealed)
        changed[at] ^= 1
        assert not called.unseal(bytes(changed))[1]
    assert not called.unseal(sealed[:20])[1]


@pytest.mark.parametrize("nonce", [b"", bytes(NONCE_BYTES - 1), bytes(NONCE_BYTES + 1)])
def test_what_is_no_nonce_is_refused(nonce: bytes) -> None:
    with pytest.raises(ValueError, match="a nonce of 32 bytes was expected"):
        Authenticator("ours", "called").set_challenge(nonce)


def test_nonces_are_fresh() -> None:
    assert len({Authenticator("ours", "caller").nonce for _ in range(100)}) == 100
