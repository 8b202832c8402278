"""Limits on what an agent accepts from its peers: connections, requests, bytes.

There must always be free descriptors:

    own files │ connections_max │ TCP: connections that the limiter has not seen yet

libzmq accepts connections on its own thread, and waits when UNSEEN_MAX of these are unseen, so a
limit of open files above the sum is never reached. The agent's own loop accepts those at a Unix
socket, and closes at once what is above the limit. See decision 32 in docs/decisions/agents.md.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass

from imap_wal.errors import InvalidSetting

CONNECTIONS_MAX = 1000
OWN_FILES = 256
"""Descriptors that an agent needs besides its connections: segments, files that a merge reads,
sockets of a storage, and of its metrics (`monitoring.listener.CONNECTIONS_MAX`)."""
OWN_FILES_MIN = 64
"""The smallest number of them, for a process that may open few files."""
UNSEEN_MAX = 1300
"""The queue of libzmq's events has room for 1,001; then its thread waits. The rest are connections
that were refused and are not closed yet."""
CONNECTIONS_LEAST = 8

MESSAGE_ROOM_BYTES = 16 * 1024 * 1024
"""The size of a frame beyond the largest value: the plug-in sends at most 8 MiB of changes in one
message, or a single larger change."""
HEADER_BYTES_MAX = 4 * 1024 * 1024
"""The largest header of a request."""
REQUESTS_MAX = 64
"""Unanswered requests of one connection; a peer that sends more is disconnected. The plug-in has at
most 6."""
RECEIVED_BYTES = 64 * 1024 * 1024
"""A turn of the agent's loop commits after receiving this many bytes."""
WAITING_BYTES = 128 * 1024
"""Requests of one connection that wait in the lane."""
WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Requests of all connections that wait: in the lane, for a look, for the thread of reads."""
SMALL_BYTES = 16 * 1024
"""A request up to this size may always wait, even if requests of others take all the memory."""
HEADER_MEMORY = 8
"""A parsed header takes up to this many times its size in memory."""
LOAD_KEYS_MAX = 65_536
LOAD_BYTES_MAX = 16 * 1024 * 1024
"""Keys of one `load`, and their bytes; a single key may be larger."""
UNSENT_BYTES = 64 * 1024 * 1024
"""No answer to a read is begun while this many bytes of earlier answers have not left the agent."""
TAIL_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of a segment in the answer to one `tail-read`."""
TAIL_CONNECTIONS_MAX = 64
"""Connections of other agents, and of tools, that read the segments on this agent's disk."""
TAIL_REQUEST_BYTES_MAX = 64 * 1024
"""The largest request there."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """`connections`: how many are admitted. `certain`: whether the limit of open files, `files`,
    suffices for any number of attempts to connect. `message_bytes`: the largest frame of a message;
    -1: no limit."""

    connections: int = CONNECTIONS_MAX
    certain: bool = True
    files: int = 0
    message_bytes: int = -1


def bounds(connections_max: int, max_value_bytes: int, *, local: bool = True) -> Bounds:
    """The bounds of an agent under this process's limit of open files. `local`: it listens at Unix
    sockets only, so not with libzmq. Raises `InvalidSetting` if the limit is too low."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        files = 2**31
    message_bytes = max_value_bytes + MESSAGE_ROOM_BYTES
    room = files - OWN_FILES - (0 if local else UNSEEN_MAX)
    if room >= min(connections_max, OWN_FILES_MIN):
        return Bounds(min(connections_max, room), True, files, message_bytes)
    few = (files - OWN_FILES_MIN) // 2
    if few < CONNECTIONS_LEAST:
        least = OWN_FILES_MIN + 2 * CONNECTIONS_LEAST
        raise InvalidSetting(
            f"this process may open {files} files (ulimit -n); an agent needs at least {least}, "
            f"and should have {wanted_files(connections_max)}"
        )
    return Bounds(min(connections_max, few), False, files, message_bytes)


def wanted_files(connections_max: int) -> int:
    """How many open files the agent needs to admit this many connections, however many others try
    to connect."""
    return OWN_FILES + connections_max + UNSEEN_MAX


def raise_file_limit(connections_max: int) -> None:
    """Raise this process's limit of open files to `wanted_files`, as far as the hard limit
    allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = wanted_files(connections_max)
    if hard != resource.RLIM_INFINITY:
        files = min(files, hard)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
