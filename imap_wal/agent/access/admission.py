"""Which peers an agent's endpoint admits.

    ipc://                    users, as the kernel reports them: root, the agent's, `allow_uids`
    tcp:// with key           the public keys in the file `clients`, by CURVE
    tcp:// without, loopback  every user of this machine
    tcp:// without, elsewhere the configuration is refused

`transport` applies these rules to each new connection. See decision 30 in docs/decisions/agents.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from imap_wal.agent.access.keys import Clients, KeyPair, read_clients, read_secret
from imap_wal.agent.access.peers import Peer
from imap_wal.agent.lines import Lines
from imap_wal.checks import check_port, is_loopback_host, mode
from imap_wal.clock import Clock
from imap_wal.errors import InvalidSetting

DEFAULT_ENDPOINT = "ipc:///run/imap-wal/agent.sock"
UID_MAX = 2**32 - 2


_ENDPOINT = re.compile(r"ipc://.+|tcp://.+:(\*|[0-9]{1,20})")


@dataclass(frozen=True, slots=True)
class Access:
    """The settings of the same names in `AgentConfig`."""

    endpoint: str
    endpoint_mode: str = "0600"
    allow_uids: tuple[int, ...] = ()
    key: str = ""
    clients: str = ""

    def check(self) -> None:
        """Raises `InvalidSetting` if the endpoint is malformed, if unknown peers could connect, or
        if the settings contradict each other."""
        whole = _ENDPOINT.fullmatch(self.endpoint)
        if not whole:
            raise InvalidSetting(
                f"endpoint is {self.endpoint!r}; it takes ipc:///path or tcp://host:port"
            )
        if whole[1] not in (None, "*"):
            check_port(whole[1], "endpoint", self.endpoint, 0)
        for uid in self.allow_uids:
            if type(uid) is not int or not 0 <= uid <= UID_MAX:
                raise InvalidSetting(
                    f"allow_uids has {uid!r}; it takes user numbers, as `id -u USER` prints them"
                )
        if self.endpoint.startswith("ipc://"):
            self._check_socket()
            return
        if self.allow_uids:
            raise InvalidSetting(
                f"allow_uids is for ipc:// endpoints; at {self.endpoint}, keys decide who may "
                "connect: set key and clients"
            )
        if bool(self.key) != bool(self.clients):
            raise InvalidSetting(
                "key and clients belong together: the agent's own key, and the file of the "
                "clients that it admits; docs/how-to/keys.md"
            )
        if not self.key and not is_loopback(self.endpoint):
            raise InvalidSetting(
                f"endpoint {self.endpoint}: without keys, anyone who can reach this address could "
                "read and change the log. Use a Unix socket "
                f"({DEFAULT_ENDPOINT}), a loopback address (tcp://127.0.0.1:7701), or keys: "
                "`imap-wal keys new`, then set key and clients"
            )

    def _check_socket(self) -> None:
        if self.key or self.clients:
            raise InvalidSetting(
                f"key and clients are for tcp:// endpoints; at {self.endpoint}, the kernel "
                "reports the user: set allow_uids"
            )
        if mode(self.endpoint_mode, "endpoint_mode") & 0o006 and not self.allow_uids:
            raise InvalidSetting(
                f"endpoint_mode {self.endpoint_mode} lets every user of this machine "
                f"connect; name those who may: allow_uids = [{os.geteuid()}, …]"
            )

    @property
    def doubt(self) -> str:
        """A warning for the operator about who may connect; "" if there is none."""
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

    def rules(self, clock: Clock) -> Users | ClientKeys | None:
        """The rules: users of a Unix socket, or `client_keys`. None: every peer that reaches the
        endpoint is admitted. Raises `InvalidSetting` if the files of keys cannot be used."""
        if not self.endpoint.startswith("ipc://"):
            return self.client_keys(clock)
        # With a mode for the group and no list, the mode decides.
        by_mode = int(self.endpoint_mode, 8) & 0o060 and not self.allow_uids
        return None if by_mode else Users(frozenset({0, os.geteuid(), *self.allow_uids}))

    def client_keys(self, clock: Clock) -> ClientKeys | None:
        """The keys that may connect to a TCP address; None: every peer that reaches it. Raises
        `InvalidSetting` if the files of keys cannot be used."""
        return ClientKeys(read_secret(self.key), Clients(self.clients, clock)) if self.key else None

    def own_key(self) -> KeyPair | None:
        """The agent's own key; None: it has none. Raises `InvalidSetting`."""
        return read_secret(self.key) if self.key else None

    def public_key(self) -> str:
        """The public part of it; "": it has none. Raises `InvalidSetting`."""
        key = self.own_key()
        return "" if key is None else key.public

    def check_files(self) -> None:
        """Raises `InvalidSetting` if the files of keys cannot be used."""
        if self.key:
            read_secret(self.key)
            read_clients(self.clients)


def is_loopback(endpoint: str) -> bool:
    """Whether only this machine can connect there."""
    try:
        return is_loopback_host(urlsplit(endpoint).hostname or "")
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Admission:
    """`who`: the peer, as text. `why`: the reason for the refusal; "": admitted. `user`: attached
    to each message of the connection."""

    who: str
    why: str = ""
    user: str = ""


class Users:
    """Admits users, as the kernel reports them."""

    def __init__(self, uids: frozenset[int]) -> None:
        self._uids = uids

    def judge(self, uid: int, pid: int) -> Admission:
        # The number: looking up a name may need a server, and other peers wait meanwhile.
        who = f"user {uid}, process {pid}"
        return Admission(who) if uid in self._uids else Admission(who, "not in allow_uids")


class ClientKeys:
    """Admits public keys."""

    def __init__(self, own: KeyPair, clients: Clients) -> None:
        self.own = own
        self._clients = clients

    def judge(self, address: str, public: bytes) -> Admission:
        """`address`: the peer's, as libzmq reports it. `public`: the public key that it has proven
        to own."""
        peer = self.clients().get(public.hex())
        if peer is None:
            return Admission(
                f"key {public.hex()} at {address}", "this key is not among the clients"
            )
        return Admission(f"{peer.name} at {address}", user=public.hex())

    def clients(self) -> Mapping[str, Peer]:
        """The current clients by their public keys: the same object until the file of clients
        changes."""
        return self._clients.known()


def report(admission: Admission, endpoint: str, lines: Lines) -> None:
    """Write a log line for audits."""
    about = admission.who.partition(", process ")[0], admission.why
    if admission.why:
        lines.warning(
            "peer refused", about, endpoint=endpoint, peer=admission.who, reason=admission.why
        )
    else:
        lines.info("peer admitted", about, endpoint=endpoint, peer=admission.who)
