"""Admits connections to the agent's socket. libzmq sends a request for each connection before the
peer can send anything (ZeroMQ Authentication Protocol, https://rfc.zeromq.org/spec/27), and
implements CURVE itself.

    request  version, number, domain, address, routing id, mechanism, credentials…
    answer   version, number, status, text, user, metadata

It has its own thread, so that connecting does not wait for a slow disk. If that thread fails,
connections are refused.
"""

from __future__ import annotations

from typing import Any

from imap_wal.agent.access.admission import Admission, ClientKeys, report
from imap_wal.agent.access.keys import KeyPair, key_bytes
from imap_wal.agent.lines import Lines
from imap_wal.errors import InvalidSetting
from imap_wal.worker import Worker
from storage_backends.extras import needs

with needs("agent"):
    import zmq
    from zmq.utils import z85

_PLACE = "inproc://zeromq.zap.01"
_DOMAIN = b"imap-wal"
_VERSION = b"1.0"
_POLL_MS = 100


class Gate:
    """Answers libzmq by `rules`. It must be created before the socket binds."""

    def __init__(
        self, context: zmq.Context[Any], rules: ClientKeys, endpoint: str, lines: Lines
    ) -> None:
        self._rules, self._endpoint, self._lines = rules, endpoint, lines
        self._socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(_PLACE)
        self.refused = 0
        """How many connections were refused."""
        self.worker = Worker("imap-wal-gate", self._turn)

    def guard(self, socket: zmq.Socket[bytes]) -> None:
        """Make libzmq ask for each connection of this socket. Call it before the bind."""
        socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, bytes.fromhex(self._rules.own.secret))
        self.worker.start()

    def close(self) -> None:
        """End the thread. Connections are refused from then on."""
        self.worker.stop(2.0)
        self._socket.close(0)

    def _turn(self, worker: Worker) -> bool:
        if not self._socket.poll(_POLL_MS):
            return True
        frames = self._socket.recv_multipart()
        number = frames[1] if len(frames) > 1 else b""
        admission = Admission("", "error")
        try:
            admission = self._judge(frames)
        finally:  # a REP socket accepts the next request only after the answer
            status, text = (b"400", b"not admitted") if admission.why else (b"200", b"")
            self._socket.send_multipart(
                [_VERSION, number, status, text, admission.user.encode(), b""]
            )
        self.refused += bool(admission.why)
        report(admission, self._endpoint, self._lines)
        return True

    def _judge(self, frames: list[bytes]) -> Admission:
        address, mechanism, credentials = frames[3].decode(errors="replace"), frames[5], frames[6:]
        if frames[0] != _VERSION or mechanism != b"CURVE" or len(credentials) != 1:
            return Admission(
                f"a peer at {address}",
                f"it uses mechanism {mechanism!r}, and this endpoint accepts only CURVE",
            )
        return self._rules.judge(address, *credentials)


def new_pair(name: str) -> KeyPair:
    """A new key pair from libsodium's generator."""
    public, secret = (z85.decode(key).hex() for key in zmq.curve_keypair())
    return KeyPair(name, public, secret)


def check_pair(pair: KeyPair) -> None:
    """Raises `InvalidSetting` unless the public key belongs to the secret key."""
    secret = z85.encode(key_bytes(pair.secret, "secret-key"))
    if z85.decode(zmq.curve_public(secret)).hex() != pair.public.lower():
        raise InvalidSetting(
            f"key {pair.name}: its public key does not belong to its secret key; make a new "
            "one with `imap-wal keys new`"
        )


def identify(socket: zmq.Socket[bytes], own: KeyPair, server: str) -> None:
    """Make a client's socket use CURVE. `server`: the agent's public key. Raises `InvalidSetting`
    if that is not a key."""
    socket.setsockopt(zmq.CURVE_PUBLICKEY, bytes.fromhex(own.public))
    socket.setsockopt(zmq.CURVE_SECRETKEY, bytes.fromhex(own.secret))
    socket.setsockopt(zmq.CURVE_SERVERKEY, key_bytes(server, "the agent's public key"))
