"""Settings of an agent, from a TOML file. `docs/reference/agent.toml` lists all of them with
comments."""

from __future__ import annotations

import os
import re
import socket
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

from imap_wal.agent.access.admission import DEFAULT_ENDPOINT, Access
from imap_wal.agent.access.http_address import HttpAddress
from imap_wal.agent.bounds import CONNECTIONS_LEAST, CONNECTIONS_MAX
from imap_wal.agent.membership.start import StartPolicy, StartRules
from imap_wal.checks import (
    SECONDS_MAX,
    check_port,
    check_seconds,
    location,
    mode,
    nearest,
    refuse_wrong_types,
)
from imap_wal.clock import SKEW_MS_MAX
from imap_wal.errors import InvalidSetting
from imap_wal.layout import Identity
from imap_wal.security.credentials import Credentials
from imap_wal.settings import Settings
from storage_backends.location import Location, without_secrets
from storage_backends.paths import local_folder
from storage_backends.registry import backend_of

CLOCK_OFFSET_MS_MAX = 10**12
"""About 30 years."""
CONNECTIONS_MOST = 2**16
MAPS_MAX, MAPS_MOST = 10_000, 10**6
RESERVE_BYTES, RESERVE_BYTES_MOST = 64 * 1024 * 1024, 2**40
"""One segment: an archive of it fits, and so do the manifests of a prune."""
UPLOAD_INTERVAL_S_MIN = 0.1
_COLLECTOR = re.compile(
    r"https?://(?:[^/?#]*@)?(?:\[[^]/?#]+\]|[^]\[:/?#]+)(?::([0-9]{1,20}))?(?=[/?#]|\Z)"
)
_TAIL = re.compile(r"tcp://.+:([0-9]{1,20})")
VALUE_BYTES_MAX = 2**29
"""An answer may contain a few of the largest keys and values, and must be below 2 GiB, the largest
frame that a member accepts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """Settings of an agent.

    `url`: root of all logs. `wal_dir`: another URL for the segments being written.
    `wal_dir_is_local`: only this node sees `wal_dir` (`imap_wal.agent.own_disk`). Then
    `tail_endpoint`: where other agents read this disk, a TCP address, with `key` and `clients`;
    `tail_address`: how they reach it, if not by this machine's name; `{node}` in it is the node's
    name. `tail_timeout_s`: how long a restore waits for the disks of other nodes that cannot be
    read, before `log.recovery_policy` decides; `upload_interval_s`: sealed segments are uploaded at
    once, and a segment is sealed when it reaches this age. `storage_options`, `wal_dir_options`:
    options for the storages of `url` and `wal_dir`; they may be secrets, so the `repr` of this
    object does not show them. `credentials`: a file with such options
    (`imap_wal.security.credentials`).

    `endpoint`: where the plug-in connects, `ipc://` or `tcp://`. `endpoint_mode`, `allow_uids`,
    `key`, `clients`: who may connect there (`imap_wal.agent.access`). `connections_max`: the limit
    of simultaneous connections. `max_maps`: changes of a new map are refused above this number.
    `http_address`: where the agent answers for its metrics and its health
    (`imap_wal.agent.monitoring`); "": nowhere. `otlp_endpoint`: base URL of a collector that gets
    traces by OTLP over HTTP; "": only if variables OTEL_… ask for them. `reserve_bytes`: how much
    of a local disk is kept for maintenance when it is full (`storage_backends.reserve`); 0:
    nothing.

    `restore_at_start`: merge all logs while the members start, not at the first request.
    `lifetime_timeout_s`: another cluster may claim the log when the former one has given no sign of
    life for this time; 0: at once, and no signs are given. `start_policy`: which nodes' agents must
    run before a new cluster gets the log. `start_timeout_s`: after this time, the error of a
    waiting cluster has advice. `ready_timeout_s`: how long the agent is not ready while its members
    compare partitions with the log. `clock_skew_max_s`: if this agent's clock differs by more from
    that of another agent or of the storage, restores keep expired entries. `clock_offset_ms` shifts
    this agent's clock (for tests).

    Raises `InvalidSetting` for an invalid value."""

    url: str
    wal_dir: str = ""
    wal_dir_is_local: bool = False
    upload_interval_s: float = 30
    tail_endpoint: str = ""
    tail_address: str = ""
    tail_timeout_s: float = 20
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    wal_dir_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    credentials: str = ""
    namespace: str = "default"
    cluster: str = "dev"
    node: str = field(default_factory=socket.gethostname)
    endpoint: str = DEFAULT_ENDPOINT
    endpoint_mode: str = "0600"
    allow_uids: tuple[int, ...] = ()
    key: str = ""
    clients: str = ""
    connections_max: int = CONNECTIONS_MAX
    max_maps: int = MAPS_MAX
    http_address: str = ""
    otlp_endpoint: str = ""
    reserve_bytes: int = RESERVE_BYTES
    restore_at_start: bool = True
    lifetime_timeout_s: float = 6
    start_policy: StartPolicy = StartPolicy.WAIT_ALL
    start_timeout_s: float = 120
    ready_timeout_s: float = 300
    clock_skew_max_s: float = SKEW_MS_MAX / 1000
    clock_offset_ms: int = 0
    takeover: bool = False
    log: Settings = field(default_factory=Settings)
    place: Location = field(init=False, repr=False)
    """`url` and `wal_dir` with their options and the source of the keys."""

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "start_policy", StartPolicy(self.start_policy))
        except ValueError:
            raise InvalidSetting(
                f"start_policy is {self.start_policy!r}; it takes one of {', '.join(StartPolicy)}"
            ) from None
        if not isinstance(self.allow_uids, list | tuple):
            raise InvalidSetting(
                f"allow_uids is {self.allow_uids!r}; it takes a list of user numbers, as in [1001]"
            )
        object.__setattr__(self, "allow_uids", tuple(self.allow_uids))
        refuse_wrong_types(self)
        mode(self.endpoint_mode, "endpoint_mode")
        for name in ("namespace", "cluster", "node"):
            if not getattr(self, name):
                raise InvalidSetting(f'{name} is ""; it takes a name, as in {name} = "eu-1"')
        Identity(self.namespace, self.cluster, self.node).check()
        self._locate()
        if self.log.manual_wal_flush:
            raise InvalidSetting(
                "log.manual_wal_flush is for embedded stores: an agent must not acknowledge "
                "changes that are not in the log"
            )
        for name, least, most in (
            ("connections_max", CONNECTIONS_LEAST, CONNECTIONS_MOST),
            ("max_maps", 1, MAPS_MOST),
            ("reserve_bytes", 0, RESERVE_BYTES_MOST),
            ("clock_offset_ms", -CLOCK_OFFSET_MS_MAX, CLOCK_OFFSET_MS_MAX),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise InvalidSetting(f"{name} is {value}; it takes a number from {least} to {most}")
        if self.log.max_value_bytes > VALUE_BYTES_MAX:
            raise InvalidSetting(
                f"log.max_value_bytes is {self.log.max_value_bytes}; an agent takes at most "
                f"{VALUE_BYTES_MAX} (512 MiB)"
            )
        if self.otlp_endpoint:
            self._check_collector()
        check_seconds(self.lifetime_timeout_s, "lifetime_timeout_s")
        check_seconds(self.start_timeout_s, "start_timeout_s")
        check_seconds(self.ready_timeout_s, "ready_timeout_s")
        check_seconds(self.clock_skew_max_s, "clock_skew_max_s")
        check_seconds(self.tail_timeout_s, "tail_timeout_s")
        if not UPLOAD_INTERVAL_S_MIN <= self.upload_interval_s <= SECONDS_MAX:
            raise InvalidSetting(
                f"upload_interval_s is {self.upload_interval_s}; it takes a number from "
                f"{UPLOAD_INTERVAL_S_MIN} to {SECONDS_MAX}"
            )
        if not self.lifetime_timeout_s and self.start_policy is not StartPolicy.PARTIAL:
            raise InvalidSetting(
                "lifetime_timeout_s is 0, so agents give no signs, and start_policy is "
                f"{str(self.start_policy)!r}, which needs them; "
                'set lifetime_timeout_s above 0, or start_policy = "partial" too'
            )
        self.access.check()
        if self.wal_dir_is_local or self.tail_endpoint or self.tail_address:
            self._check_local()
        if self.http_address:
            HttpAddress.parse(self.http_address)

    @property
    def access(self) -> Access:
        """Who may connect to `endpoint`. At a Unix socket, `key` and `clients` are for
        `tail_endpoint` alone."""
        keys = (self.key, self.clients)
        if self.tail_endpoint and self.endpoint.startswith("ipc://"):
            keys = ("", "")
        return Access(self.endpoint, self.endpoint_mode, self.allow_uids, *keys)

    @property
    def tail_access(self) -> Access:
        """Who may connect to `tail_endpoint`."""
        return Access(self.tail_endpoint, key=self.key, clients=self.clients)

    @property
    def served_at(self) -> str:
        """The address of this agent's disk for other agents; "": its segments are not on a disk of
        its own."""
        if not self.tail_endpoint or self.tail_address:
            return self.tail_address.replace("{node}", self.node)
        host, _, port = self.tail_endpoint.removeprefix("tcp://").rpartition(":")
        every = host in ("*", "0.0.0.0", "[::]")  # noqa: S104  # it is compared, not listened at
        return f"tcp://{socket.gethostname() if every else host}:{port}"

    def _check_collector(self) -> None:
        """Raises `InvalidSetting` if `otlp_endpoint` is not a URL."""
        whole = _COLLECTOR.match(self.otlp_endpoint)
        if not whole:
            raise InvalidSetting(
                f"otlp_endpoint is {without_secrets(repr(self.otlp_endpoint))}; it takes the base "
                "URL of a collector, as in http://localhost:4318"
            )
        if whole[1]:
            check_port(whole[1], "otlp_endpoint", without_secrets(self.otlp_endpoint))

    def _check_local(self) -> None:
        """Raises `InvalidSetting` if the settings of an own disk do not fit together."""
        if not self.wal_dir_is_local or not self.wal_dir or not self.tail_endpoint:
            raise InvalidSetting(
                "wal_dir_is_local, wal_dir and tail_endpoint belong together: the segments are on "
                "this node's own disk, and other agents read them at tail_endpoint, as in "
                "tcp://0.0.0.0:7702; docs/how-to/local-disks.md"
            )
        if set(self.tail_address.replace("{node}", "")) & set("{}"):
            raise InvalidSetting(
                f"tail_address is {self.tail_address!r}; the only placeholder that it takes is "
                "{node}, the name of the node"
            )
        for name, text in (("tail_endpoint", self.tail_endpoint), ("tail_address", self.served_at)):
            whole = _TAIL.fullmatch(text)
            if not whole:
                raise InvalidSetting(f"{name} is {text!r}; it takes tcp://host:port")
            check_port(whole[1], name, text)  # not 0: other agents must know the port
        self.tail_access.check()
        every = self.log.rotate_interval_s or self.upload_interval_s
        rotating = replace(self.log, rotate_interval_s=min(every, self.upload_interval_s))
        object.__setattr__(self, "log", rotating)

    @property
    def doubts(self) -> list[str]:
        """Warnings for the operator about who may connect."""
        http = HttpAddress.parse(self.http_address).doubt if self.http_address else ""
        tail = self.tail_access.doubt if self.tail_endpoint else ""
        return [doubt for doubt in (self.access.doubt, tail, http) if doubt]

    def _locate(self) -> None:
        """Move the options out of the URLs, and add those of the credentials file."""
        credentials = Credentials.read(self.credentials) if self.credentials else Credentials()
        root = location(self.url, "url", self.storage_options, self.log.file_mode)
        segments = location(self.wal_dir, "wal_dir", self.wal_dir_options)
        for name, value in (
            ("url", root.url),
            ("storage_options", root.options),
            ("wal_dir", segments.url),
            ("wal_dir_options", segments.options),
        ):
            object.__setattr__(self, name, value)
        if self.wal_dir_is_local and segments.url:
            _demand_a_disk(segments.url, root.url)
            folder = Identity(self.namespace, self.cluster, self.node).node_folder
            segments = replace(segments, disk_of=folder)
        place = replace(
            root,
            wal_dir=segments if segments.url else None,
            encryption_keys=self.log.encryption_keys,
        )
        object.__setattr__(self, "place", credentials.given_to(place))

    @property
    def start_rules(self) -> StartRules:
        return StartRules(
            self.start_policy,
            self.start_timeout_s,
            self.lifetime_timeout_s,
            round(self.clock_skew_max_s * 1000),
        )

    @classmethod
    def from_mapping(
        cls, data: Mapping[str, Any], file: str = "the configuration", **overrides: Any
    ) -> Self:
        """The settings from a parsed file. `overrides` take precedence. Raises `InvalidSetting` for
        the first key that is unknown or invalid."""
        table = dict(data)
        log = table.pop("log", {})
        if not isinstance(log, Mapping):
            raise InvalidSetting(
                f"{file}: log is {without_secrets(repr(log))}; it takes a table, [log]"
            )
        settings = {field.name for field in fields(cls) if field.init} - {"takeover"}
        known_log = {field.name for field in fields(Settings)}
        _refuse_unknown(table, settings, file, "", dict.fromkeys(known_log, "under [log]"))
        _refuse_unknown(log, known_log, file, "log.", dict.fromkeys(settings, "above the tables"))
        if "url" not in table:
            raise InvalidSetting(f"{file}: url is missing")
        try:
            return cls(log=Settings(**log), **{**table, **overrides})
        except (TypeError, InvalidSetting) as error:
            raise InvalidSetting(f"{file}: {error}") from error

    @classmethod
    def from_toml(cls, path: str | Path, **overrides: Any) -> Self:
        """Read a file. `overrides` take precedence. Raises `InvalidSetting`."""
        try:
            data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidSetting(f"{path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:  # also: not UTF-8, or a very long number
            # from None: the error contains the text
            raise InvalidSetting(f"{path}: not TOML: {error}") from None
        return cls.from_mapping(data, str(path), **overrides)


def _demand_a_disk(wal_dir: str, url: str) -> None:
    """Raises `InvalidSetting` if a `wal_dir` with `wal_dir_is_local` cannot be a disk of its own
    beside `url`."""
    if not backend_of(wal_dir).is_lasting:
        raise InvalidSetting(
            f"wal_dir is {wal_dir!r} and wal_dir_is_local is set: memory is lost "
            "with the process; it takes a folder on this machine's disk"
        )
    if _whole(wal_dir) == _whole(url):
        raise InvalidSetting(
            f"wal_dir and url are both {wal_dir!r}, and wal_dir_is_local is set: "
            "only this node sees wal_dir, and all machines see url; they take different places"
        )


def _whole(url: str) -> str:
    """A URL in one form: a local folder without links."""
    folder = local_folder(url)
    return os.path.realpath(folder) if folder else url.rstrip("/")


def _refuse_unknown(
    table: Mapping[str, Any],
    names: set[str],
    file: str,
    prefix: str,
    elsewhere: Mapping[str, str],
) -> None:
    """`elsewhere`: settings of another table → where they belong."""
    for key in table:
        if key not in names:
            hint = f"{key} belongs {elsewhere[key]}" if key in elsewhere else nearest(key, names)
            raise InvalidSetting(f"{file}: unknown setting {prefix}{key}; {hint}")
