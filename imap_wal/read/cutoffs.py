"""Where the logs of all nodes of a cluster end now. A claim voids what is appended after that."""

from __future__ import annotations

from typing import NamedTuple

from imap_wal.format import Position
from imap_wal.read.cluster import ATTEMPTS, ClusterLog
from imap_wal.read.file_scan import END
from storage_backends import NotFound


class Cutoffs(NamedTuple):
    """Node → the position where its log ends now. `covered`: missing nodes of whose unseen entries
    other logs have all that were acknowledged."""

    cuts: dict[str, Position]
    covered: frozenset[str] = frozenset()


def find_cutoffs(log: ClusterLog) -> Cutoffs:
    """The position where every node's log ends now; entries up to it count. A registered node whose
    log is missing is cut after everything, so its entries count if it returns. But if other logs
    have each acknowledged change of it, it is cut after what can be seen: otherwise a change that
    counts as absent from now on would return with it."""
    for _ in range(ATTEMPTS):
        state = log.state()
        covered = state.covered_by_copies
        cuts = dict.fromkeys(state.missing, END)
        try:
            for name in state.nodes:
                node_state = log.node(name)  # its disk may have become unreachable since
                cuts[name] = (
                    END
                    if node_state.missing
                    else log.end_of(node_state, node_state.manifest.checkpoint)
                )
            for name in covered:
                part = state.parts[name]
                cuts[name] = log.end_of(part, part.manifest.removed)
        except NotFound:
            continue
        return Cutoffs(cuts, covered)
    raise NotFound("the logs change too fast to find their ends; try again", log.folder)
