"""The epochs of a log, and which history a position is of.

Every open begins an epoch, and gives it a random id. The id is in the node's manifest, and in the
header of each segment of the epoch. A copy of a log has the epochs of the original; when the copy
is opened, it begins an epoch with an id of its own. So a position with the id of its epoch belongs
to one history only, whatever made the copy: `imap-wal`, `cp`, or a snapshot of the disk.

The cluster's manifest has the ids of the epochs that low-water marks are of (`Name`). Two copies
diverge before the first epoch with another id (`fork`): marks cover no entry after that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from imap_wal.errors import OtherHistory
from imap_wal.format import EPOCH_ID_BYTES, START, MarkedPosition, Position
from imap_wal.manifest.store import Whole

EPOCHS_MAX = 250
"""Epochs whose ids a manifest keeps. A position that is older than all of them cannot be
checked, and is refused."""
NAMES_MAX = 64
"""Epochs of a log whose ids the cluster's manifest keeps."""

Name: TypeAlias = tuple[Whole, str]
"""Number and id of an epoch."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """One open of a log. `id`: 12 hex digits. `end`: the position of its last entry that counts, or
    of a frame without entries after it; None: no later open has determined it yet. If `repair` has
    changed a part of an epoch, that part is another epoch with the same number after it."""

    number: Whole
    id: str
    end: Position | None = None


def begun(
    epochs: Sequence[Epoch], number: int, id: str, removed: Position, opened: int
) -> tuple[Epoch, ...]:
    """These epochs, and a new one. Those that ended before `removed` are left out: their entries
    can no longer be read. `opened`: the epoch that is recorded as opened (`layout.opened_path`). It
    remains, because the new epoch is recorded later."""
    remaining = {
        epoch.number
        for epoch in epochs
        if epoch.end is None or epoch.end >= removed or epoch.number == opened
    }
    epochs = [epoch for epoch in epochs if epoch.number in remaining]
    return _limited((*epochs, Epoch(number, id)), opened)


def _limited(epochs: Sequence[Epoch], opened: int = 0) -> tuple[Epoch, ...]:
    """The last of these epochs, and the one that is recorded as opened. Those without entries are
    left out first: no position is in them. Of an epoch with several ids, all remain or none:
    segments may have any of them."""
    surplus = len(epochs) - EPOCHS_MAX
    if surplus <= 0:
        return tuple(epochs)
    count = Counter(epoch.number for epoch in epochs)
    with_entries = {epoch.number for epoch in epochs if _has_entries(epoch)}
    gone = set()
    for number in sorted(count, key=lambda each: (each == opened, each in with_entries, each)):
        if surplus <= 0:
            break
        gone.add(number)
        surplus -= count[number]
    return tuple(epoch for epoch in epochs if epoch.number not in gone)


def _has_entries(epoch: Epoch) -> bool:
    return epoch.end is None or epoch.end.epoch >= epoch.number


def ended(epochs: Sequence[Epoch], end: Position) -> tuple[Epoch, ...]:
    """The epochs after an open, which begins the last of them. Entries up to `end` are kept; later
    ones are given up, also those of epochs whose end was known."""
    former = closed(epochs[:-1], end)
    return (*(replace(epoch, end=min(epoch.end or end, end)) for epoch in former), *epochs[-1:])


def lost_from(epochs: Sequence[Epoch], segment: int) -> tuple[Epoch, ...]:
    """The epochs of a log whose segments from this number on are lost."""
    ends = [Position(epoch.number, segment, 0, 0) for epoch in epochs]
    return tuple(
        replace(epoch, end=min(epoch.end or end, end))
        for epoch, end in zip(epochs, ends, strict=True)
    )


def closed(epochs: Sequence[Epoch], end: Position) -> tuple[Epoch, ...]:
    """The epochs of a copy that ends at `end`: epochs whose end is not known end there."""
    return tuple(epoch if epoch.end else replace(epoch, end=end) for epoch in epochs)


def forked(
    epochs: Sequence[Epoch], shared: Position, new_id: Callable[[int], str]
) -> tuple[Epoch, ...]:
    """The epochs of a copy that differs from its log after `shared`. `new_id` returns the new id of
    an epoch. The former id is kept too, because segments that were not changed still have it."""
    result: list[Epoch] = []
    for epoch in epochs:
        if epoch.end is not None and epoch.end <= shared:
            result.append(epoch)
        else:
            result += (replace(epoch, end=shared), replace(epoch, id=new_id(epoch.number)))
    return _limited(result)


def ids(epochs: Sequence[Epoch], number: int) -> tuple[str, ...]:
    """The ids that segments of an epoch may have; none: unknown."""
    return tuple(epoch.id for epoch in epochs if epoch.number == number)


def between(epochs: Sequence[Epoch], first: int, last: int) -> tuple[Epoch, ...]:
    """The epochs with these numbers, both included."""
    return tuple(epoch for epoch in epochs if first <= epoch.number <= last)


def named(epochs: Sequence[Epoch], former: Sequence[Name] = ()) -> tuple[Name, ...]:
    """The names of the last epochs of a log. `former`: those that were known before, of epochs that
    the log may have forgotten."""
    numbers = {epoch.number for epoch in epochs}
    left = [name for name in former if name[0] not in numbers]
    names = sorted([*left, *((epoch.number, epoch.id) for epoch in epochs)])
    last = sorted({number for number, _ in names})[-NAMES_MAX:]
    return tuple(name for name in names if name[0] >= last[0])


def fork(names: Sequence[Name], epochs: Sequence[Epoch]) -> Position | None:
    """Up to where the log with these epochs has the same entries as the log with these names;
    START: they are not known to share any. None: they are one log, or nothing is known of one."""
    theirs = _by_number(names)
    ours = _by_number((epoch.number, epoch.id) for epoch in epochs)
    numbers = theirs.keys() & ours.keys()
    others = [number for number in numbers if theirs[number] != ours[number]]
    if others:
        shared = [epoch.end for epoch in epochs if epoch.number < min(others)]
        return max((_before(end) for end in shared if end is not None), default=START)
    # A log forgets epochs below `NodeManifest.removed`, which no mark is below, and those before
    # the last `EPOCHS_MAX`: then it may be the same log.
    is_full = len(epochs) * 2 >= EPOCHS_MAX
    return None if numbers or not names or not epochs or is_full else START


def _before(end: Position) -> Position:
    """The end of an epoch. If all of it was archived, that is the start of a segment that was never
    written, which a reader would miss: then, the end of the segment before it."""
    return end if end.frame else Position(end.epoch, end.segment - 1, 2**62, 0)


def _by_number(names: Iterable[Name]) -> dict[int, set[str]]:
    ids_by_number: dict[int, set[str]] = {}
    for number, id in names:
        ids_by_number.setdefault(number, set()).add(id)
    return ids_by_number


def segment_id(epochs: Sequence[Epoch], number: int, token: bytes) -> bytes:
    """The random id of a new segment of an epoch. `token`: as many random bytes as it has."""
    epoch_ids = ids(epochs, number)
    return bytes.fromhex(epoch_ids[-1]) + token[EPOCH_ID_BYTES:] if epoch_ids else token


def marked(epochs: Sequence[Epoch], position: Position) -> Position:
    """The position with the id of its epoch, if that is known."""
    for epoch in epochs:
        if epoch.number == position.epoch and _has(epoch, position):
            return MarkedPosition.of(position, epoch.id)
    return position


def all_marked(epochs: Sequence[Epoch], positions: list[Position]) -> list[Position]:
    """The positions with the ids of their epochs, as far as they are known."""
    if not epochs:
        return positions
    if len(epochs) == 1:
        (epoch,), of = epochs, MarkedPosition.of
        # An archive may also have entries of an epoch that the log has forgotten.
        return [
            of(position, epoch.id) if position.epoch == epoch.number else position
            for position in positions
        ]
    return [marked(epochs, position) for position in positions]


def id_in(position: Position) -> str:
    """The id in a marked position; "" for another one."""
    return position.epoch_id if isinstance(position, MarkedPosition) else ""


def demand(
    epochs: Sequence[Epoch], position: Position, log_name: str, removed: Position = START
) -> Position:
    """The position without an id, if it is of the history that these epochs have. Raises
    `OtherHistory` if it is not. `log_name`: the log, for the error. `removed`: a position up to
    this one may be of an epoch that the log has forgotten. The caller will notice that entries
    after it were removed."""
    if not isinstance(position, MarkedPosition):
        return position
    shared = None
    for epoch in epochs:
        if (epoch.number, epoch.id) == (position.epoch, position.epoch_id):
            if _has(epoch, position):
                return Position(*position)
            shared = epoch.end
    if position <= removed and not ids(epochs, position.epoch):
        return Position(*position)
    raise OtherHistory(log_name, str(position), str(marked(epochs, shared)) if shared else "")


def demand_same(
    epochs: Sequence[Epoch],
    planned: Sequence[Epoch],
    place: Position,
    log_name: str,
    removed: Position,
) -> None:
    """Raises `OtherHistory` if a log with the epochs `planned` was replaced by one with these, and
    this one does not have all entries up to `place`. `removed`: as for `demand`."""
    demand(epochs, marked(planned, place), log_name, removed)
    present = {epoch.number for epoch in epochs}
    for epoch in planned:
        if epoch.number in present and epoch.id not in ids(epochs, epoch.number):
            begin = MarkedPosition.of((epoch.number, 0, 0, 0), epoch.id)
            raise OtherHistory(log_name, str(begin), "")


def _has(epoch: Epoch, position: Position) -> bool:
    return epoch.end is None or position <= epoch.end.after()
