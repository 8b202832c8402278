"""A split network: the drill, and the fixes that it needs, each reverted."""

from __future__ import annotations

from typing import Any

from imap_wal.agent.membership import claims, sessions
from imap_wal.agent.membership.claims import find_cutoffs
from imap_wal.errors import OutcomeUnknown
from imap_wal.manifest.claims import ClaimManifest
from tests.simulation.actors import Op, Spec
from tests.simulation.drills import DRILLS, ORDERS
from tests.simulation.medium import APPEND
from tests.simulation.mutation import Mutation, Put
from tests.simulation.runs import Plan

_SPLIT = "two halves of a split network"
_SURVIVORS = "two survivors with a change under way"


def _half(name: str, node: str, *ops: Op) -> tuple[Spec, Spec]:
    agent = Spec(f"agent {name}", ((("serve",),),), node, role="agent")
    return agent, Spec(name, (ops,), node, role="member")


DRILLS[_SPLIT] = Plan(
    APPEND,
    "empty",
    (
        *_half("A", "n1", ("until", "B"), ("put", 0), ("lose", "B"), ("list",), ("put", 1)),
        *_half("B", "n2", ("put", 1), ("until", "A"), ("put", 1), ("lose", "A"), ("put", 0)),
    ),
    acknowledged=3,
)
DRILLS[_SURVIVORS] = Plan(
    APPEND,
    "empty",
    (
        *_half("A", "n1", ("until", "B"), ("lose", "C"), ("put", 0), ("list",)),
        *_half("B", "n2", ("put", 1), ("put", 1), ("lose", "C"), ("list",)),
    ),
    acknowledged=3,
)
ORDERS[_SPLIT] = (((1,), 0, (3, 2)), ((3,), 2, (1, 0)))
ORDERS[_SURVIVORS] = (((), 2, (0, 3, 1)), ((3,), 2, (1, 0)))


def _views_are_not_compared(put: Put) -> None:
    def check_newest(self: Any, batches: Any) -> None:
        self.claims.newest()
        known = self.claims.known
        for batch in batches:
            own = self._by_number.get(batch.session)
            if own is not None and own.cluster_id != known.cluster_id:
                batch.error = OutcomeUnknown("another cluster claimed this log")

    put(sessions.SessionRegistry, "check_newest", check_newest)


def _cuts_before_permits(put: Put) -> None:
    def cutoffs(cluster: Any, newest: ClaimManifest) -> Any:
        cuts = find_cutoffs(cluster)
        claims.delete_permits(cluster, 0, newest.newest)
        return cuts

    put(claims, "cutoffs_of", cutoffs)


def _all_that_is_in_the_log_counts(put: Put) -> None:
    def last(log: Any, cluster: Any, ended: Any) -> dict[int, int]:
        return {session: log.requests.get(session, 0) for session in ended}

    put(sessions, "last_that_count", last)


def _any_member_may_write(put: Put) -> None:
    put(ClaimManifest, "admits", lambda *_: True)


MUTATIONS = (
    Mutation(
        "V1",
        "a claim of the same cluster id is passed over",
        _views_are_not_compared,
        (_SPLIT,),
        "splits",
    ),
    Mutation(
        "V2",
        "cutoffs are read while the older view has its permit",
        _cuts_before_permits,
        (_SPLIT,),
        "splits",
    ),
    Mutation(
        "V3",
        "what is in the log above the cut is said to count",
        _all_that_is_in_the_log_counts,
        (_SURVIVORS,),
        "splits",
    ),
    Mutation(
        "V4",
        "a member that was left out of a view is admitted",
        _any_member_may_write,
        (_SPLIT,),
        "splits",
    ),
)
