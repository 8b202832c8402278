"""A TCP address at which a process serves those on other machines, with TLS and certificates of
both sides."""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from imap_wal.checks import check_port, is_loopback_host
from imap_wal.errors import ImapWalError, InvalidSetting, NotAllowed
from imap_wal.workers.endpoint import Sockets

TCP = "tcp://"
HANDSHAKE_S = 10.0
"""How long a handshake of TLS may take."""
ADDRESS_S = 5.0
"""How long a connection to one of several addresses may take."""
KEEPALIVE_S, KEEPALIVE_PROBES = 10, 3
"""The kernel probes a silent peer at this interval, and closes the connection after this many
unanswered probes."""
_ADDRESS = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]+)):([0-9]{1,20})")


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files in PEM form. `certificate`: of this process, with those between it and the authority.
    `key`: its private key, without a password. `authority`: who has signed the certificates of the
    other side; each of them is admitted."""

    certificate: str | Path
    key: str | Path
    authority: str | Path

    def context(self, side: ssl.Purpose) -> ssl.SSLContext:
        """For connections to servers (`SERVER_AUTH`) or from clients. Raises `InvalidSetting`."""
        # Only the authority that is given, not those of the system.
        is_client = side is ssl.Purpose.SERVER_AUTH
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if is_client else ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
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


def _no_password() -> str:
    raise ValueError("the key has a password; a key without one is needed")


def _reason(error: Exception) -> str:
    """ssl's own texts do not say what is wrong with a file."""
    if isinstance(error, ssl.SSLError):
        return f"not valid PEM, or they do not belong together ({error.reason or error})"
    return str(error.strerror if isinstance(error, OSError) and error.strerror else error)


class NetworkEndpoint:
    """An `Endpoint` at a TCP address: to listen at, or to connect to; then `url` may have several,
    `tcp://host:port,host:port`, which are tried in turn. Without certificates, only addresses of
    this machine are allowed. Raises `InvalidSetting`."""

    def __init__(self, url: str, certificates: Certificates | None) -> None:
        self.name = url
        self._addresses = [_address(url, part) for part in url.removeprefix(TCP).split(",")]
        if certificates is None and not all(is_loopback_host(host) for host, _ in self._addresses):
            raise InvalidSetting(
                f"{url}: without certificates, anyone who can reach this address could read and "
                "change the log; pass certificates, or use an address of this machine "
                "(tcp://127.0.0.1:port)"
            )
        self._server = self._client = None
        if certificates is not None:
            self._server = certificates.context(ssl.Purpose.CLIENT_AUTH)
            self._client = certificates.context(ssl.Purpose.SERVER_AUTH)

    def lock(self, holder: str) -> _NoLock:
        """The system lets only one process listen at an address."""
        return _NoLock()

    def listen(self) -> socket.socket:
        """Raises `InvalidSetting` if it cannot listen there."""
        if len(self._addresses) > 1:
            raise InvalidSetting(f"{self.name}: a server listens at one address")
        ((host, port),) = self._addresses
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return Sockets.kept(socket.create_server((host, port), family=family, backlog=128))
        except OSError as error:
            reason = error.strerror or str(error)
            raise InvalidSetting(f"cannot listen at {self.name}: {reason}") from error

    def admitted(self, accepted: socket.socket) -> socket.socket | None:
        _keep_alive(accepted)
        if self._server is None:
            return accepted
        return self._server.wrap_socket(
            accepted, server_side=True, do_handshake_on_connect=False, suppress_ragged_eofs=True
        )

    def greet(self, connection: socket.socket) -> None:
        if isinstance(connection, ssl.SSLSocket):
            connection.settimeout(HANDSHAKE_S)
            connection.do_handshake()

    def connect(self, timeout_s: float) -> socket.socket:
        """To the first address that answers. Raises OSError, and `NotAllowed` if the server has no
        certificate of the authority."""
        end = time.monotonic() + timeout_s
        failure: OSError = ConnectionRefusedError("no time is left")
        for address in self._addresses:
            left = end - time.monotonic()
            if left <= 0:
                break
            try:
                return self._connected(address, min(left, ADDRESS_S))
            except ssl.SSLCertVerificationError as error:
                text = f"the certificate of the server at {self.name} is not valid here: {error}"
                raise NotAllowed(f"{text}; nothing was sent") from error
            except OSError as error:
                failure = error
        raise failure

    def _connected(self, address: tuple[str, int], timeout_s: float) -> socket.socket:
        connection = Sockets.kept(socket.create_connection(address, timeout_s))
        try:
            _keep_alive(connection)
            if self._client is None:
                return connection
            return Sockets.kept(self._client.wrap_socket(connection, server_hostname=address[0]))
        except BaseException:
            connection.close()
            raise

    def refusal(self, error: OSError) -> ImapWalError | None:
        """With TLS 1.3, a client learns from its first read that the server does not admit it."""
        if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
            return NotAllowed(
                f"the server at {self.name} does not admit this certificate ({error.reason}): its "
                "authority must have signed it"
            )
        return None

    def remove(self) -> None: ...


class _NoLock:
    def release(self) -> None: ...


def _address(url: str, part: str) -> tuple[str, int]:
    match = _ADDRESS.fullmatch(part)
    if match is None:
        raise InvalidSetting(f"address {url!r}; it takes tcp://host:port")
    check_port(match[3], "address", url)
    return match[1] or match[2], int(match[3])


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
