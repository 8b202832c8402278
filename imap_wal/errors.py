"""All errors that imap-wal raises. The docstring of each class says what is wrong and what to do.
The agent has a few more of its own, and `imap_wal.hazelcast` has `LogUnavailable`.

ImapWalError
├── NotAppended             the change is certainly not in the log or in memory: safe to retry
│   ├── NotSerializable     the key or value has no serialised form; also TypeError, ValueError
│   ├── TooLarge            the key and value are too large; also a ValueError
│   ├── ReadOnly            the store was opened with read_only=True
│   └── Conflict            a newer transaction of a stream wrote a lock of this one
├── NotReadable             stored bytes are not of the map's type; also a ValueError
├── OutcomeUnknown          the change may be in the log: read before you try again
├── WriterLocked            another process writes this node's log
├── Fenced                  another process took over this node's log: the change is not in the log
├── Closed                  the store or log was closed
├── LogError                a file of the log is not valid; names file and position
│   ├── CorruptLog          bytes have changed
│   │   └── Forged          bytes that were not encrypted with the key for that place
│   ├── ShortLog            bytes are missing
│   └── UnsupportedVersion  written in another format
├── EncryptionError         a key is missing or wrong, or a file is not encrypted as required
├── MissingNode             the log of a node that belongs to the cluster is missing
├── NoSuchLog               there is no log of this name
├── LogExists               there is already a log of this name
├── PositionGone            entries at the position were removed; names the oldest that is left
│   └── OtherHistory        a position is of another copy of the log
├── LostRace                another process published first
├── EngineFailed            the engine of a rewrite, such as Spark, could not start or finish
├── NotAllowed              the agent refuses this connection or request
├── NotRepairable           damage that `imap-wal repair` cannot decide about by itself
├── InvalidSetting          a setting or argument is not valid; also a ValueError
├── MissingLibrary          a library is not installed; also an ImportError
└── StorageUnavailable      the storage is unreachable, full or read-only
"""

from __future__ import annotations

SEGMENT_ADVICE = (
    "run `imap-wal verify`; bring the file back from a copy, write a repaired copy of the "
    "log with `imap-wal repair`, or open the node with "
    "recovery_mode='point-in-time' to continue with the entries before the damage"
)


def not_text(error: UnicodeEncodeError) -> str:
    """The error text for a string that UTF-8 cannot encode because it has a lone surrogate.
    `json.loads` and `os.fsdecode` can return such strings."""
    shown, code = (
        ascii(error.object[max(0, error.start - 20) : error.start + 20]),
        ord(error.object[error.start]),
    )
    return (
        f"the text {shown} has a lone surrogate, U+{code:04X}, at character {error.start}: it "
        "cannot be written as UTF-8"
    )


class ImapWalError(Exception):
    """Base class of all errors of imap-wal. The text describes what happened, and ends with
    `advice`: what a Python program can do. The command line replaces it with its own advice."""

    advice: str = ""

    @property
    def without_advice(self) -> str:
        """The text without the advice."""
        return str(self).removesuffix(f"; {self.advice}")


class NotAppended(ImapWalError):
    """The change is certainly not in the log, and memory is unchanged. Correct the cause that the
    text names, then try again."""


class NotSerializable(NotAppended, TypeError, ValueError):
    """The serializer cannot write the key or value: for example, its type is wrong, or it is text
    with a lone surrogate. Pass another type, or use a custom serializer."""

    def __init__(self, problem: str, place: str = "") -> None:
        """`place`: where in the value the problem is, such as `.items[3].when`; maps add their name
        and the key before it."""
        super().__init__(f"{place}: {problem}" if place else problem)
        self.problem, self.place = problem, place

    def at(self, before: str) -> NotSerializable:
        """The same error with a longer place."""
        return NotSerializable(self.problem, before + self.place)


class TooLarge(NotAppended, ValueError):
    """The key and value together exceed `max_value_bytes`. Store less, or raise the setting."""


class ReadOnly(NotAppended):
    """The store was opened with `read_only=True`, and changes nothing. Make changes in the process
    that writes the log."""


class Conflict(NotAppended):
    """A transaction of a stream was refused: after its author read the view, transaction `newest`
    wrote the lock `lock`. Build it again from a view that has `newest`."""

    def __init__(self, lock: str, partition: int, newest: int, seen: int) -> None:
        super().__init__(lock, partition, newest, seen)
        self.lock, self.partition, self.newest, self.seen = lock, partition, newest, seen

    def __str__(self) -> str:  # not before it is needed: many are raised, and few are shown
        return (
            f"transaction {self.newest} of partition {self.partition} wrote lock {self.lock!r}, "
            f"but this one was built from a view up to transaction {self.seen}; build it again "
            "from a newer view"
        )


class NotReadable(ImapWalError, ValueError):
    """A stored key or value cannot be read: it does not have the type of the map, or another
    program wrote it. The entry is unchanged. Open the map with types that can read it, or replace
    or delete the entry: `put` and `Batch.delete` do not read it."""

    def __init__(self, problem: str, data: bytes, place: str = "") -> None:
        """`data`: the stored bytes. `place`: as for `NotSerializable`."""
        super().__init__(f"{place}: {problem}" if place else problem)
        self.problem, self.data, self.place = problem, data, place

    def at(self, before: str) -> NotReadable:
        """The same error with a longer place."""
        return NotReadable(self.problem, self.data, before + self.place)


class OutcomeUnknown(ImapWalError):
    """A write or sync failed: after the next open, the change may be there or not. Open the log
    again, read the key, and decide. `__cause__` is the failure; it is `Fenced` if another process
    took over, or if the folder of the log was replaced."""


class WriterLocked(ImapWalError):
    """Another process has this node's log open for writing; `holder` names that process. Stop it,
    or open with `takeover=True`: from then on that process acknowledges nothing."""

    advice = "stop that process, or fence it with takeover=True"

    def __init__(self, node: str, holder: str, advice: str = "") -> None:
        self.advice = advice or self.advice
        super().__init__(f"the log of node {node!r} is being written by {holder}; {self.advice}")
        self.node, self.holder = node, holder


class Fenced(ImapWalError):
    """Another process took over this node's log; `holder` names that process, if known. Or the
    folder of the log was replaced. This writer acknowledges nothing more, and the change that
    raised this error is not in the log. Close this writer."""

    def __init__(self, what: str, holder: str = "", advice: str = "") -> None:
        super().__init__(f"{what}; {advice}" if advice else what)
        self.holder, self.advice = holder, advice


class Closed(ImapWalError):
    """The program has closed this store or log. Open it again."""


class LogError(ImapWalError):
    """A file of the log cannot be used. `file` is relative to the root; `offset` is in bytes. Run
    `imap-wal verify` to find all damage."""

    def __init__(
        self,
        file: str,
        offset: int,
        what: str,
        advice: str = "run `imap-wal verify` on the log, and restore the file from a copy",
    ) -> None:
        super().__init__(f"{file} at byte {offset}: {what}; {advice}")
        self.file, self.offset, self.what, self.advice = file, offset, what, advice


class CorruptLog(LogError):
    """Bytes that were once correct have changed on the storage. Nothing after `offset` in this
    file is used."""


class Forged(CorruptLog):
    """The checksum is correct, but the content was not encrypted for this place: it was written
    without the key, or moved from another place. Find out who can write to the storage."""


class ShortLog(LogError):
    """The file is shorter than it must be: a copy is incomplete, or the storage lost synced
    bytes."""


class UnsupportedVersion(LogError):
    """A newer version wrote this file. Upgrade imap-wal; the file is unchanged."""


class EncryptionError(ImapWalError):
    """The keys do not fit a file: its key is missing, another key has its id, or the file is not
    encrypted and the keys do not allow that. This is not damage: nothing is cut off or changed.
    `file` is relative to the root; `key_id` is "" if the file does not name a key."""

    def __init__(
        self, file: str, key_id: str, what: str, advice: str, *, is_missing: bool = False
    ) -> None:
        """`is_missing`: the key is not among the given keys."""
        super().__init__(f"{file}: {what}; {advice}")
        self.file, self.key_id, self.what, self.advice, self.is_missing = (
            file,
            key_id,
            what,
            advice,
            is_missing,
        )


class MissingNode(ImapWalError):
    """A node that is registered in the cluster's manifest has no log, or its folder contains
    another log. Restore its log, or open with recovery_policy="partial"."""

    def __init__(self, what: str, advice: str = "") -> None:
        super().__init__(f"{what}; {advice}" if advice else what)
        self.advice = advice


class NoSuchLog(ImapWalError):
    """There is no log of this name under the URL. Check the names, or create the log with
    `imap_wal.log.create`."""


class LogExists(ImapWalError):
    """`imap_wal.log.create` found a log of this name. Open it, or choose another name."""


class PositionGone(ImapWalError):
    """Some entries at or above the position `asked` were removed: a snapshot covers them, or the
    log was shrunk. From `oldest` on, all entries can be read; a covered entry's content is in a
    snapshot. Both are positions as text, as `read` accepts them."""

    def __init__(self, asked: str, oldest: str) -> None:
        super().__init__(
            f"some entries from {asked} on were removed; the oldest readable position is "
            f"{oldest}: begin with a snapshot, and continue from there"
        )
        self.asked, self.oldest = asked, oldest


class OtherHistory(PositionGone):
    """A position belongs to another history of the log: since it was read, the log was restored
    from a backup, repaired, or replaced by another copy or a new log. `asked` is that position;
    `oldest` is the last position that both histories have, "" if the log does not know it."""

    def __init__(self, what: str, asked: str, shared: str) -> None:
        advice = "begin again with a snapshot, or at the oldest position"
        where = "the log does not know where its history differs from that one"
        if shared:
            where = f"both histories are the same up to {shared}, and differ after that"
            advice += f", or continue after {shared} with what this log has instead"
        ImapWalError.__init__(
            self,
            f"{what}: position {asked} belongs to another history of this log, which was restored, "
            f"repaired or replaced since; {where}. Something before that position is not in this "
            f"log: {advice}",
        )
        self.asked, self.oldest = asked, shared


class LostRace(ImapWalError):
    """Another process published the next manifest first, and this change no longer fits. Run the
    command again."""


class EngineFailed(ImapWalError):
    """The engine of a rewrite, such as Spark, could not start or finish. Nothing was published.
    Correct the cause that the text names, and run the rewrite again."""

    def __init__(self, what: str, advice: str) -> None:
        super().__init__(f"{what}; {advice}")
        self.advice = advice


class NotAllowed(ImapWalError):
    """An agent refuses a connection or a request: the user, the key or the cluster's token lacks
    the right. Or a side of a stream's connection refuses the certificate of the other one. Nothing
    was changed. Ask the administrator of the agent or the server."""


class NotRepairable(ImapWalError):
    """A repair cannot decide by itself how to treat this damage. The text names the file to move
    or restore first. Nothing was written."""


class InvalidSetting(ImapWalError, ValueError):
    """A setting or argument is not valid; the text names it and its valid values."""


class MissingLibrary(ImapWalError, ImportError):
    """A file of the log, or what was called, needs a library that is not installed. The text names
    the extra that installs it. Nothing was changed."""


class StorageUnavailable(ImapWalError):
    """The storage failed, is full, or cannot be reached; the text includes the storage's own
    message. Correct the cause and try again."""
