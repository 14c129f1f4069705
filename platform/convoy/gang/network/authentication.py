"""How both ends of a connection prove that they know the gang's token, without sending it.

Each end first sends a nonce: 32 random bytes, fresh for this connection. Each end's next message then carries an
HMAC-SHA256, keyed by the token, over its role, both nonces and the message:

    caller → called   nonce
    called → caller   nonce
    caller → called   HMAC(token, "caller" + nonces + hello) + hello
    called → caller   HMAC(token, "called" + nonces + welcome) + welcome

So nothing that was overheard proves anything on another connection, and no proof can be sent back to the end that made
it. The hello names its sender and the node that it means to reach. A token serves one formation.
"""

import hashlib
import hmac
import secrets
from typing import Literal

Role = Literal["caller", "called"]
"""The caller made the connection."""

NONCE_BYTES = 32

_PROOF_BYTES = hashlib.sha256().digest_size


class Authenticator:
    """One end of one connection."""

    def __init__(self, token: str, role: Role) -> None:
        self._token, self._role = token.encode(), role
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        """Ours."""
        self._theirs: bytes | None = None

    @property
    def is_challenged(self) -> bool:
        """Whether the other end's nonce has arrived."""
        return self._theirs is not None

    def set_challenge(self, nonce: bytes) -> None:
        """Take the other end's nonce. Raises ValueError if it has the wrong length."""
        if len(nonce) != NONCE_BYTES:
            raise ValueError(f"a nonce of {NONCE_BYTES} bytes was expected, not {len(nonce)} bytes")
        self._theirs = nonce

    def seal(self, message: bytes) -> bytes:
        """The message with this end's proof."""
        return self._proof(self._role, message) + message

    def unseal(self, data: bytes) -> tuple[bytes, bool]:
        """The message of the other end, and whether its proof is right."""
        proof, message = data[:_PROOF_BYTES], data[_PROOF_BYTES:]
        return message, hmac.compare_digest(proof, self._proof(_OTHER[self._role], message))

    def _proof(self, role: Role, message: bytes) -> bytes:
        assert self._theirs is not None
        nonces = (self.nonce, self._theirs) if self._role == "caller" else (self._theirs, self.nonce)
        return hmac.digest(self._token, b"".join((role.encode(), *nonces, message)), "sha256")


_OTHER: dict[Role, Role] = {"caller": "called", "called": "caller"}
