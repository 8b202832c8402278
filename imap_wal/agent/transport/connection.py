"""The state of one connection to the agent's Unix socket."""

from __future__ import annotations

import socket
from collections import deque
from dataclasses import dataclass, field

from imap_wal.agent.access.admission import Admission


@dataclass(eq=False, slots=True)
class LocalConnection:
    """`sender` names it, and is never used twice. `since`: when it was accepted, in monotonic
    seconds. `admission`: what the access rules say; None: there are none."""

    socket: socket.socket
    sender: bytes
    since: float
    admission: Admission | None
    state: str = "greeting"
    """`greeting` or `handshake`: what the next bytes are; `open`: messages; `closed`."""
    greeted: bool = False
    """Whether its hello was accepted."""
    rest: bytes = b""
    """The beginning of a frame that has not arrived as a whole."""
    body: bytearray | None = None
    """Of a large frame that has not arrived as a whole: its beginning. `filled`: how many bytes of
    it have arrived; `size`, `flags`: as the frame says."""
    filled: int = 0
    size: int = 0
    flags: int = 0
    is_large: bool = False
    """Whether its last frame was large. Then the helper reads the next one too, while the loop
    syncs."""
    header: bytes = b""
    payload: bytes = b""
    frames: int = 0
    """How many frames of the next message have arrived."""
    helped: int = 0
    """The events for which the helper waits. While it waits for input, the loop does not."""
    unwritable: bool = False
    """A write has failed. What the peer has sent before can still be read."""
    queued: int = 0
    """Messages that the loop has not received yet."""
    unanswered: int = 0
    """Requests without an answer."""
    unsent: deque[memoryview] = field(default_factory=deque)
    """What the system has not taken yet of answers."""
