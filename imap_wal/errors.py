"""All errors that imap-wal raises. Each class says what is at fault and what to do.

ImapWalError
├── NotAppended             the change is certainly not in the log and not in memory: safe to retry
│   ├── NotSerializable     your key or value: also a TypeError and a ValueError
│   └── TooLarge            your key or value: also a ValueError
├── OutcomeUnknown          the change may be in the log: read before you try again
├── WriterLocked            another process writes this node's log
├── Fenced                  another process took over this node's log: the change is not in the log
├── Closed                  you closed it
├── LogError                a file of the log is not valid; names file and position
│   ├── CorruptLog          bytes changed
│   │   └── Forged          bytes that no holder of the key wrote there
│   ├── ShortLog            bytes missing
│   └── UnsupportedVersion  written by a newer imap-wal
├── EncryptionError         your keys: missing, wrong, or the file is not encrypted as they demand
├── OrderConflict           not raised any more: two nodes claim the same change of a key
├── MissingNode             the log of a node that belongs to the cluster is missing
├── NoSuchLog               no log with the name that you gave was created
├── LogExists               the log that you create exists already
├── PositionGone            you read from a place that was removed; names the oldest that is left
├── LostRace                another process published first
├── NotAllowed              you: the agent does not let you do this
├── NotRepairable           a damaged log that `imap-wal repair` cannot decide about by itself
├── InvalidSetting          your setting: also a ValueError
└── StorageUnavailable      the storage: unreachable, full, read-only
"""

from __future__ import annotations

SEGMENT_ADVICE = (
    "run `imap-wal verify`; bring the file back from a copy, write a repaired copy of the "
    "log with `imap-wal repair`, or open the node with "
    "recovery_mode='point-in-time' to go on with what stands before it"
)


def not_text(error: UnicodeEncodeError) -> str:
    """The error text for a string that UTF-8 cannot encode: it has one half of a surrogate pair, as
    `json.loads` and `os.fsdecode` can return it."""
    shown, code = (
        ascii(error.object[max(0, error.start - 20) : error.start + 20]),
        ord(error.object[error.start]),
    )
    return (
        f"the text {shown} has a lone surrogate, U+{code:04X}, at character {error.start}: it "
        "cannot be written as UTF-8"
    )


class ImapWalError(Exception):
    """Base of all errors that imap-wal raises on purpose. Its text says what happened, and ends
    with `advice`: what a Python program can do. The command line shows other advice instead."""

    advice: str = ""

    @property
    def told(self) -> str:
        """The text without the advice."""
        return str(self).removesuffix(f"; {self.advice}")


class NotAppended(ImapWalError):
    """The change is certainly not in the log, and memory is unchanged. Correct the cause that the
    text names, then try again."""


class NotSerializable(NotAppended, TypeError, ValueError):
    """The key or value is not something the serializer can write: of a wrong type, or a text with a
    lone surrogate, for example. Pass another type, or a serializer of your own."""


class TooLarge(NotAppended, ValueError):
    """The key and value together exceed `max_value_bytes`. Store less, or raise the setting."""


class OutcomeUnknown(ImapWalError):
    """A write or sync failed before its end: after the next open the change may be there or not.
    Reopen, read the key, decide. `__cause__` is the failure: `Fenced` if another process took
    over."""


class WriterLocked(ImapWalError):
    """Another process holds this node's log; `holder` names it. Stop it, or take over: it
    acknowledges nothing more then."""

    advice = "stop that process, or shut it out with takeover=True"

    def __init__(self, node: str, holder: str) -> None:
        super().__init__(f"the log of node {node!r} is being written by {holder}; {self.advice}")
        self.node, self.holder = node, holder


class Fenced(ImapWalError):
    """Another process took over this node's log; `holder` names that process, if known. This
    writer acknowledges nothing more, and the change that gets this error is not in the log. Close
    this writer."""

    def __init__(self, what: str, holder: str = "", advice: str = "") -> None:
        super().__init__(f"{what}; {advice}" if advice else what)
        self.holder, self.advice = holder, advice


class Closed(ImapWalError):
    """The store was closed by its own program. Open it again."""


class LogError(ImapWalError):
    """A file of the log cannot be used. `file` is relative to the root, `offset` in bytes. Run
    `imap-wal verify` for the whole picture."""

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
    """Bytes that were once whole have changed. The storage's fault; nothing after `offset` in that
    file is used silently."""


class Forged(CorruptLog):
    """The checksum is right, and the content was not encrypted with the key for this place: it was
    written without the key, or moved from another place. Find out who can write to the storage."""


class ShortLog(LogError):
    """The file ends before what must be there. A copy was cut, or the storage lost synced bytes."""


class UnsupportedVersion(LogError):
    """The file was written by a newer version. Upgrade imap-wal; the file is untouched."""


class EncryptionError(ImapWalError):
    """The keys do not fit a file: its key is not among them, or is another one under the same id;
    or the file is not encrypted, and the keys do not allow that. It is no damage: nothing is cut
    off or changed. `file` is relative to the root, `key_id` is "" where the file does not say."""

    def __init__(
        self, file: str, key_id: str, what: str, advice: str, *, is_missing: bool = False
    ) -> None:
        """`is_missing`: the key is not among those that were given."""
        super().__init__(f"{file}: {what}; {advice}")
        self.file, self.key_id, self.what, self.advice, self.is_missing = (
            file,
            key_id,
            what,
            advice,
            is_missing,
        )


class OrderConflict(ImapWalError):
    """Two nodes' logs hold the same order for one key: both halves of a split network wrote, or a
    node directory was copied. Deprecated: nothing raises it any more. It stays so that programs
    that catch it can still be imported. A restore chooses by a fixed rule and logs a warning;
    `imap-wal verify` names all such keys, and `imap-wal rewrite --resolve` decides them."""


class MissingNode(ImapWalError):
    """A node registered in the cluster manifest has no log, or another disk has its name. Bring it
    back, or restore with recovery_policy="partial"."""

    def __init__(self, what: str, advice: str = "") -> None:
        super().__init__(f"{what}; {advice}" if advice else what)
        self.advice = advice


class NoSuchLog(ImapWalError):
    """There is no log of this name under the URL. Check the names, or make it with
    `imap_wal.log.create`."""


class LogExists(ImapWalError):
    """`imap_wal.log.create` found a log of this name. Open it, or choose another name."""


class PositionGone(ImapWalError):
    """Entries from the position `asked` on were removed: a snapshot covers them, or somebody shrank
    the log. From `oldest` on, reading is whole; what the removed ones said is in the snapshots.
    Both are positions as text, which `read` takes."""

    def __init__(self, asked: str, oldest: str) -> None:
        super().__init__(
            f"entries from {asked} on were removed; the oldest readable position is "
            f"{oldest}: begin with a snapshot, and read on from there"
        )
        self.asked, self.oldest = asked, oldest


class LostRace(ImapWalError):
    """Another process published the next manifest first, and what this one wanted no longer fits.
    Run the command again."""


class NotAllowed(ImapWalError):
    """An agent refuses a connection or a request: the user, the key or the cluster's token does not
    have the right. Nothing was changed. Ask the administrator of the agent."""


class NotRepairable(ImapWalError):
    """A repair cannot decide about this damage by itself. The text says which file to move or
    restore first. Nothing was written."""


class InvalidSetting(ImapWalError, ValueError):
    """A setting has an invalid value; the text names the setting and the values that it takes."""


class StorageUnavailable(ImapWalError):
    """The storage failed, is full, or cannot be reached; the text includes the storage's own
    message. Correct the cause and try again."""
