"""A TCP address at which a process serves those on other machines, with TLS and certificates of
both sides."""

from __future__ import annotations

import errno
import re
import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from imap_wal.checks import check_port, is_loopback_host
from imap_wal.errors import ImapWalError, InvalidSetting, NotAllowed
from imap_wal.security.secret_files import read_secret_file
from imap_wal.workers.endpoint import Sockets

TCP = "tcp://"
HANDSHAKE_S = 10.0
"""The limit for a handshake of TLS, in seconds."""
ADDRESS_S = 5.0
"""The limit for connecting to one address, in seconds."""
KEEPALIVE_S, KEEPALIVE_PROBES = 10, 3
"""The kernel probes a silent peer at this interval, and closes the connection after this many
unanswered probes."""
_ADDRESS = re.compile(r"(?:\[([0-9a-fA-F:.%]+)\]|([A-Za-z0-9_.-]{1,253})):([0-9]{1,20})")
_FORM = "tcp://host:port or tcp://host:port,host:port"


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files in PEM form. `certificate`: of this process, followed by intermediate certificates.
    `key`: its private key, without a password. `authority`: the certificate of the authority that
    signs the certificates of the other side."""

    certificate: str | Path
    key: str | Path
    authority: str | Path

    def context(self, side: ssl.Purpose) -> ssl.SSLContext:
        """Returns a context for connections to servers (`SERVER_AUTH`) or from clients. Raises
        `InvalidSetting` for a file that cannot be used, and if other users may read the key."""
        is_client = side is ssl.Purpose.SERVER_AUTH
        # It trusts only the authority that is given, not those of the system.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if is_client else ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # it may be an intermediate one
        context.hostname_checks_common_name = False  # any client could be named as a server
        _readable(self.certificate, "certificate")
        _readable(self.authority, "authority")
        try:
            read_secret_file(self.key)
        except OSError as error:
            raise InvalidSetting(f"key {self.key}: {_reason(error)}") from error
        try:
            context.load_cert_chain(self.certificate, self.key, _no_password)
        except (OSError, ValueError) as error:
            raise InvalidSetting(
                f"certificate {self.certificate} with key {self.key}: {_reason(error)}"
            ) from error
        try:
            context.load_verify_locations(self.authority)
        except (OSError, ValueError) as error:
            raise InvalidSetting(f"authority {self.authority}: {_reason(error)}") from error
        return context


def _readable(file: str | Path, noun: str) -> None:
    try:
        with Path(file).open("rb"):
            pass
    except (OSError, TypeError) as error:
        raise InvalidSetting(f"{noun} {file}: {_reason(error)}") from error


def _no_password() -> str:
    raise ValueError("the key has a password; a key without one is needed")


def _reason(error: Exception) -> str:
    """ssl's own texts do not say what is wrong with a file."""
    if isinstance(error, ssl.SSLError):
        return f"not valid PEM, or they do not belong together ({error.reason or error})"
    return str(error.strerror if isinstance(error, OSError) and error.strerror else error)


class _Target(NamedTuple):
    """One place of the address with this number."""

    number: int
    host: str
    family: int
    place: Any


class NetworkEndpoint:
    """An `Endpoint` at a TCP address: to listen at (`serves`), or to connect to; then `url` may
    have several, `tcp://host:port,host:port`, which are tried in turn. Without certificates, only
    addresses of this machine are allowed. Raises `InvalidSetting`."""

    def __init__(
        self, url: str, certificates: Certificates | None, *, serves: bool = False
    ) -> None:
        if not url.startswith(TCP):
            raise InvalidSetting(f"address {url!r} is not valid; use {_FORM}")
        if certificates is not None and not isinstance(certificates, Certificates):
            raise InvalidSetting(
                f"certificates is {certificates!r}; it takes imap_wal.stream.Certificates"
            )
        self.name = url
        self._first = 0
        """The number of the address that is tried first."""
        self._addresses = [_address(url, part) for part in url.removeprefix(TCP).split(",")]
        if certificates is None and not all(is_loopback_host(host) for host, _ in self._addresses):
            raise InvalidSetting(
                f"{url}: without certificates, anyone who can reach this address could read and "
                "change the log; pass certificates, or use an address of this machine "
                "(tcp://127.0.0.1:port)"
            )
        side = ssl.Purpose.CLIENT_AUTH if serves else ssl.Purpose.SERVER_AUTH
        self._tls = None if certificates is None else certificates.context(side)

    def lock(self, holder: str) -> _NoLock:
        """The system lets only one process listen at an address."""
        return _NoLock()

    def listen(self) -> socket.socket:
        """Raises `InvalidSetting` if it cannot listen there."""
        if len(self._addresses) > 1:
            raise InvalidSetting(f"{self.name}: a server listens at one address")
        try:
            return Sockets.kept(
                socket.create_server(self._addresses[0], family=self._family, backlog=128)
            )
        except OSError as error:
            raise self._not_possible(error) from error

    def demand_free(self) -> None:
        """Raises `InvalidSetting` if this machine does not have the address. Another process may
        listen there now."""
        try:
            with socket.socket(self._family) as bound:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                bound.bind(self._addresses[0])
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise self._not_possible(error) from error

    def _not_possible(self, error: OSError) -> InvalidSetting:
        reason = (error.strerror or str(error)).partition(" (while")[0]
        return InvalidSetting(f"cannot listen at {self.name}: {reason}")

    @property
    def _family(self) -> socket.AddressFamily:
        return socket.AF_INET6 if ":" in self._addresses[0][0] else socket.AF_INET

    def admitted(self, accepted: socket.socket) -> socket.socket | None:
        _keep_alive(accepted)
        if self._tls is None:
            return accepted
        return self._tls.wrap_socket(
            accepted, server_side=True, do_handshake_on_connect=False, suppress_ragged_eofs=True
        )

    def greet(self, connection: socket.socket) -> None:
        if isinstance(connection, ssl.SSLSocket):
            connection.settimeout(HANDSHAKE_S)
            connection.do_handshake()

    def peer(self, connection: socket.socket) -> str:
        try:
            return str(connection.getpeername()[0])
        except OSError:
            return "an address that is not known"

    def connect(self, timeout_s: float) -> socket.socket:
        """To the address that answered last, otherwise to the next one that answers. Raises
        OSError, and `NotAllowed` if no server has a certificate that is valid here."""
        end = time.monotonic() + timeout_s
        failures: list[OSError] = []
        targets = self._resolved(failures)
        refused: ssl.SSLCertVerificationError | None = None
        for index, target in enumerate(targets):
            left = end - time.monotonic()
            if left <= 0:
                failures.append(TimeoutError("the time limit has passed"))
                break
            try:
                connection = self._connected(target, min(left / (len(targets) - index), ADDRESS_S))
            except ssl.SSLCertVerificationError as error:
                refused = error
            except OSError as error:
                failures.append(error)
            else:
                self._first = target.number
                connection.settimeout(max(0.001, end - time.monotonic()))
                return connection
        if refused is None:
            raise failures[-1]
        text = f"the certificate of a server at {self.name} was not accepted here: {refused}"
        if failures:  # it may serve soon
            raise ConnectionRefusedError(f"{failures[-1]}; {text}")
        raise NotAllowed(text) from refused

    def _resolved(self, failures: list[OSError]) -> list[_Target]:
        targets = []
        for turn in range(len(self._addresses)):
            index = (self._first + turn) % len(self._addresses)
            host, port = self._addresses[index]
            try:
                resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except OSError as error:
                failures.append(error)
            else:
                targets += [
                    _Target(index, host, family, place) for family, _, _, _, place in resolved
                ]
        return targets

    def _connected(self, target: _Target, timeout_s: float) -> socket.socket:
        end = time.monotonic() + timeout_s
        connection = Sockets.kept(socket.socket(target.family, socket.SOCK_STREAM))
        try:
            connection.settimeout(timeout_s)
            connection.connect(target.place)
            _keep_alive(connection)
            if self._tls is None:
                return connection
            secured = self._tls.wrap_socket(
                connection, server_hostname=target.host, do_handshake_on_connect=False
            )
            connection = Sockets.kept(secured)
            secured.settimeout(max(0.001, end - time.monotonic()))
            secured.do_handshake()
            return secured
        except BaseException:
            connection.close()
            raise

    def skip(self) -> bool:
        self._first = (self._first + 1) % len(self._addresses)
        return len(self._addresses) > 1

    def refusal(self, error: OSError) -> ImapWalError | None:
        """With TLS 1.3, a client learns from its first read that the server does not admit it."""
        if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
            return NotAllowed(
                f"a server at {self.name} refused this certificate ({error.reason}): it must be "
                "valid, and signed by the authority that the server names"
            )
        return None

    def advice(self, error: OSError) -> str:
        if isinstance(error, ConnectionResetError) or (
            isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLCertVerificationError)
        ):
            has = "none" if self._tls is not None else "certificates"
            return f"; perhaps the server has {has}, unlike this program"
        return ""

    def remove(self) -> None: ...


class _NoLock:
    def release(self) -> None: ...


def _address(url: str, part: str) -> tuple[str, int]:
    match = _ADDRESS.fullmatch(part)
    host = (match[1] or match[2]) if match is not None else ""
    if match is None or not all(0 < len(label) < 64 for label in host.rstrip(".").split(".")):
        raise InvalidSetting(f"address {url!r} is not valid; use {_FORM}")
    check_port(match[3], "address", url)
    return host, int(match[3])


def _keep_alive(connection: socket.socket) -> None:
    options: Sequence[tuple[int, int, int]] = (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPIDLE", 0), KEEPALIVE_S),
        (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPINTVL", 0), KEEPALIVE_S),
        (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPCNT", 0), KEEPALIVE_PROBES),
    )
    for level, option, value in options:
        if option:
            with suppress(OSError):  # it has ended
                connection.setsockopt(level, option, value)
