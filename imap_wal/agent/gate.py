"""Admits connections to the agent's socket: libzmq asks here before a peer can send anything (the
ZeroMQ Authentication Protocol, https://rfc.zeromq.org/spec/27), and does CURVE itself.

    request  version, number, domain, address, routing id, mechanism, credentials…
    answer   version, number, status, text, user, metadata

It has a thread of its own, so that connecting does not wait for a slow disk. If that thread fails,
connections are refused.
"""

from __future__ import annotations

from typing import Any

import structlog

from imap_wal.agent.access import Rules, Verdict
from imap_wal.agent.keys import KeyPair, key_bytes
from imap_wal.clock import Clock
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
_TOLD_S = 10.0
"""A peer that tries again and again is logged once in this time."""
_TOLD_MAX = 1000

_log = structlog.get_logger("imap_wal.agent")


class Gate:
    """Asks `rules`. To be made before the socket binds."""

    def __init__(self, context: zmq.Context[Any], rules: Rules, endpoint: str, clock: Clock) -> None:
        self._rules, self._endpoint, self._clock = rules, endpoint, clock
        self._socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(_PLACE)
        self._told: dict[tuple[str, str], tuple[float, int]] = {}
        """By who and why: when it was logged last, and how often it came since."""
        self.worker = Worker("gate", self._turn)

    def guard(self, socket: zmq.Socket[bytes]) -> None:
        """Have libzmq ask here for each connection of a socket that binds next."""
        socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)
        own = self._rules.own
        if own is not None:
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_SECRETKEY, bytes.fromhex(own.secret))
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
        verdict = Verdict("", "error")
        try:
            verdict = self._judge(frames)
        finally:  # a REP socket takes the next request only after its answer
            status, text = (b"400", b"not admitted") if verdict.why else (b"200", b"")
            self._socket.send_multipart([_VERSION, number, status, text, verdict.user.encode(), b""])
        self._tell(verdict)
        return True

    def _judge(self, frames: list[bytes]) -> Verdict:
        address, mechanism, credentials = frames[3].decode(errors="replace"), frames[5], frames[6:]
        wanted = b"CURVE" if self._rules.own is not None else b"NULL"
        if frames[0] != _VERSION or mechanism != wanted or len(credentials) != (mechanism == b"CURVE"):
            return Verdict(f"a peer at {address}", f"it came with mechanism {mechanism!r}, this endpoint takes {wanted!r}")
        return self._rules.judge(address, *(credentials or [b""]))

    def _tell(self, verdict: Verdict) -> None:
        """A line for the audit."""
        now, about = self._clock.monotonic(), (verdict.who.partition(", process ")[0], verdict.why)
        last, times = self._told.get(about, (-_TOLD_S, 0))
        if now - last < _TOLD_S:
            self._told[about] = last, times + 1
            return
        if len(self._told) >= _TOLD_MAX:
            self._told.clear()
        self._told[about] = now, 0
        if verdict.why:
            _log.warning("peer refused", endpoint=self._endpoint, peer=verdict.who, reason=verdict.why, before=times)
        else:
            _log.info("peer admitted", endpoint=self._endpoint, peer=verdict.who, before=times)


def new_pair(name: str) -> KeyPair:
    """A key from libsodium's generator."""
    public, secret = (z85.decode(key).hex() for key in zmq.curve_keypair())
    return KeyPair(name, public, secret)


def check_pair(pair: KeyPair) -> None:
    """`InvalidSetting` unless the public key is that of the secret one."""
    secret = z85.encode(key_bytes(pair.secret, "secret-key"))
    if z85.decode(zmq.curve_public(secret)).hex() != pair.public.lower():
        raise InvalidSetting(f"key {pair.name}: its public key is not that of its secret key; make a new one with `imap-wal keys new`")


def identify(socket: zmq.Socket[bytes], own: KeyPair, server: str) -> None:
    """Have a client's socket use CURVE. `server`: the agent's public key."""
    socket.setsockopt(zmq.CURVE_PUBLICKEY, bytes.fromhex(own.public))
    socket.setsockopt(zmq.CURVE_SECRETKEY, bytes.fromhex(own.secret))
    socket.setsockopt(zmq.CURVE_SERVERKEY, key_bytes(server, "the agent's public key"))
