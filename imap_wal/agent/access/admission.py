"""Who is admitted to an agent's endpoint.

    ipc://                    the users that the kernel names: root, the agent's own, `allow_uids`
    tcp:// with key           the public keys in the file `clients`, by CURVE
    tcp:// without, loopback  everybody on this machine
    tcp:// without, elsewhere refused when the configuration is read

`gate.py` asks these rules for each new connection. See docs/decisions/0030.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from imap_wal.agent.access.keys import Clients, KeyPair, read_clients, read_secret
from imap_wal.agent.access.peers import Peer
from imap_wal.clock import Clock
from imap_wal.errors import InvalidSetting
from imap_wal.settings import mode

DEFAULT_ENDPOINT = "ipc:///run/imap-wal/agent.sock"
UID_MAX = 2**32 - 2


@dataclass(frozen=True, slots=True)
class Access:
    """The settings of these names in `AgentConfig`."""

    endpoint: str
    endpoint_mode: str = "0600"
    allow_uids: tuple[int, ...] = ()
    key: str = ""
    clients: str = ""

    def check(self) -> None:
        """`InvalidSetting` if strangers could connect, or if the settings contradict each other."""
        for uid in self.allow_uids:
            if type(uid) is not int or not 0 <= uid <= UID_MAX:
                raise InvalidSetting(
                    f"allow_uids has {uid!r}; it takes numbers of users, as `id -u USER` "
                    "prints them"
                )
        if self.endpoint.startswith("ipc://"):
            self._check_socket()
            return
        if self.allow_uids:
            raise InvalidSetting(
                f"allow_uids is for ipc:// endpoints; at {self.endpoint}, keys say who may "
                "connect: set key and clients"
            )
        if bool(self.key) != bool(self.clients):
            raise InvalidSetting(
                "key and clients belong together: the agent's own key, and the file of those "
                "that it admits; docs/operations.md, Keys"
            )
        if not self.key and not is_loopback(self.endpoint):
            raise InvalidSetting(
                f"endpoint {self.endpoint}: without keys, whoever reaches this address could "
                "read and change the log. Use a Unix socket "
                f"({DEFAULT_ENDPOINT}), a loopback address (tcp://127.0.0.1:7701), or keys: "
                "`imap-wal keys new`, then set key and clients"
            )

    def _check_socket(self) -> None:
        if self.key or self.clients:
            raise InvalidSetting(
                f"key and clients are for tcp:// endpoints; at {self.endpoint}, the kernel "
                "names the user: set allow_uids"
            )
        if mode(self.endpoint_mode, "endpoint_mode") & 0o006 and not self.allow_uids:
            raise InvalidSetting(
                f"endpoint_mode {self.endpoint_mode} lets every user of this machine "
                f"connect; name those who may: allow_uids = [{os.geteuid()}, …]"
            )

    @property
    def doubt(self) -> str:
        """What an operator should know about who may connect; "" if nothing."""
        if self.endpoint.startswith("tcp://") and not self.key:
            return (
                f"every user of this machine may connect to {self.endpoint}; use "
                f"{DEFAULT_ENDPOINT}, or keys"
            )
        if (
            self.endpoint.startswith("ipc://")
            and not self.allow_uids
            and int(self.endpoint_mode, 8) & 0o060
        ):
            return (
                "every member of the socket's group may connect (endpoint_mode "
                f"{self.endpoint_mode}); name the users with allow_uids"
            )
        return ""

    def rules(self, clock: Clock) -> Rules | None:
        """None: nothing is asked of who connects. `InvalidSetting` for files of keys that cannot be
        used."""
        if self.endpoint.startswith("ipc://"):
            # A mode for the group without a list is from before there was one: the mode decides.
            return (
                None
                if int(self.endpoint_mode, 8) & 0o060 and not self.allow_uids
                else Users(frozenset({0, os.geteuid(), *self.allow_uids}))
            )
        return Keys(read_secret(self.key), Clients(self.clients, clock)) if self.key else None

    def check_files(self) -> None:
        """`InvalidSetting` if the files of keys cannot be used."""
        if self.key:
            read_secret(self.key)
            read_clients(self.clients)


def is_loopback(endpoint: str) -> bool:
    """Whether only this machine can connect there. A name of an interface is none that is known to
    be one."""
    try:
        host = urlsplit(endpoint).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Verdict:
    """`who` connects, for people, and `why` they are refused, "" if they are admitted. `user` comes
    with each message of the connection."""

    who: str
    why: str = ""
    user: str = ""


class Rules(Protocol):
    """`own`: the agent's key, if connections are encrypted."""

    @property
    def own(self) -> KeyPair | None: ...

    def judge(self, address: str, public: bytes) -> Verdict:
        """`address`: of the peer, as libzmq tells it. `public`: the key that it has proven to have;
        b"" without keys."""

    def clients(self) -> Mapping[str, Peer]:
        """Those who may connect, by their public keys, as they are now: the same object until the
        file of clients changes. Empty without keys."""


class Users:
    """By the users that the kernel names."""

    own: KeyPair | None = None

    def __init__(self, uids: frozenset[int]) -> None:
        self._uids = uids

    def judge(self, address: str, public: bytes) -> Verdict:
        # libzmq appends ":uid:gid:pid" to the address of a Unix socket.
        parts = address.rsplit(":", 3)
        try:
            uid, pid = int(parts[1]), int(parts[3])
        except (IndexError, ValueError):
            return Verdict("an unknown user", "the kernel did not name the user")
        # A number: to look its name up may mean to ask a server, and others wait to be admitted.
        who = f"user {uid}, process {pid}"
        return Verdict(who) if uid in self._uids else Verdict(who, "not in allow_uids")

    def clients(self) -> Mapping[str, Peer]:
        return {}


class Keys:
    """By public keys."""

    def __init__(self, own: KeyPair, clients: Clients) -> None:
        self.own: KeyPair | None = own
        self._clients = clients

    def judge(self, address: str, public: bytes) -> Verdict:
        found = self.clients().get(public.hex())
        if found is None:
            return Verdict(f"key {public.hex()} at {address}", "this key is not among the clients")
        return Verdict(f"{found.name} at {address}", user=public.hex())

    def clients(self) -> Mapping[str, Peer]:
        return self._clients.known()
