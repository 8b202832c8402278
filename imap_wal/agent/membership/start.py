"""What a new cluster waits for before it gets the log: the end of the former cluster, then the
log's nodes.

    hello of an unknown cluster id ─▶ NotLooked: the agent's loop keeps it ─▶ a look (`liveness.py`)
                                   ─▶ the same hello again ─▶ Waits, or the claim

Only `Belonging` reads the storage, on the thread of the looks. The time of a claim never affects
safety. See decision 25 in docs/decisions/members.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from imap_wal.agent.lines import Lines
from imap_wal.agent.membership.liveness import Presence, SignWatch
from imap_wal.clock import SKEW_MS_MAX, Clock, utc
from imap_wal.errors import ImapWalError, LogError
from imap_wal.manifest.claims import ClaimManifest
from imap_wal.manifest.node import NodeManifestLog
from imap_wal.read.cluster import ClusterLog


class StartPolicy(StrEnum):
    """Which nodes a new cluster waits for."""

    WAIT_ALL = "wait-all"
    WAIT_MOST = "wait-most"
    PARTIAL = "partial"


@dataclass(frozen=True, slots=True)
class StartRules:
    """The settings of `AgentConfig`, in seconds, and `clock_skew_max_s` in milliseconds."""

    policy: StartPolicy
    timeout_s: float
    lifetime_timeout_s: float
    clock_skew_ms_max: int = SKEW_MS_MAX


ASKS_S = 30.0
"""A cluster that waits asks every second or two. One that has not asked for this time does not wait
any more."""
AT_ONCE = StartRules(StartPolicy.PARTIAL, 0, 0)
"""Rules by which a new cluster never waits."""


class Waits(ImapWalError):
    """A new cluster must wait for the log. Nothing was changed."""


class NotLooked(ImapWalError):
    """Look `look` must be done before it is known whether a new cluster gets the log."""

    def __init__(self, look: int) -> None:
        super().__init__(
            "this agent is looking for signs of other agents, and its storage has not answered yet"
        )
        self.look = look


class Belonging:
    """The nodes that a new cluster may wait for: those whose agents ever had a member. Unused,
    forgotten and embedded nodes do not count."""

    def __init__(self, cluster: ClusterLog) -> None:
        self._cluster = cluster
        self._had_members: set[str] = set()
        """Log directories that are known to have had members; this never changes."""

    def __call__(self) -> list[str]:
        nodes = self._cluster.manifests.read()[1].nodes
        return [node for node, directory in nodes.items() if self._has_had_members(node, directory)]

    def _has_had_members(self, node: str, directory: str) -> bool:
        if directory not in self._had_members:
            cluster = self._cluster
            try:
                plugins = (
                    NodeManifestLog(cluster.context, cluster.node_folder(node)).read()[1].plugins
                )
            except LogError:
                return True  # its agent cannot start either, and says why
            if not plugins:
                return False
            self._had_members.add(directory)
        return True


@dataclass(frozen=True, slots=True)
class _Wait:
    """A waiting cluster. `newest`: the incarnation that it will follow. `since`, `asked`: its first
    and its last hello, in monotonic seconds. `nodes`: it waits for nodes too, not only for the
    former cluster. `logged`: the events that were logged about it."""

    cluster_id: str
    newest: int
    since: float
    asked: float
    nodes: bool
    logged: tuple[str, ...] = ()


class Start:
    """Decides by the result of the last look. Used by the serving thread."""

    def __init__(self, node: str, rules: StartRules, watch: SignWatch, clock: Clock) -> None:
        self._node = node
        self._policy, self._timeout_s, self._watch, self._clock = (
            rules.policy,
            rules.timeout_s,
            watch,
            clock,
        )
        self._asked: tuple[str, int, int] = ("", 0, 0)
        """The cluster that asked last, the newest incarnation at that time, and the look for it."""
        self._wait: _Wait | None = None
        self._lines = Lines(clock)

    def looked(self, number: int) -> bool:
        return self._watch.sight.number >= number

    def alive(self) -> bool:
        """Whether the cluster that has the log may be alive, as far as this agent knows. True also
        if the last look is old because the agent hears a member itself, the storage does not
        answer, or agents give no signs."""
        sight, timeout_s = self._watch.sight, self._watch.timeout_s
        old = not sight.number or self._clock.monotonic() - sight.at >= 2 * timeout_s
        return bool(sight.alive) or old

    def look_again(self) -> None:
        """Make the next `alive` newer. Returns at once."""
        self._watch.ask(start=False)

    def waiting_s(self) -> float:
        """How long a new cluster has waited here; 0: none waits. Safe to call from any thread."""
        wait, now = self._wait, self._clock.monotonic()
        return now - wait.since if wait is not None and now - wait.asked < ASKS_S else 0.0

    def ended(self) -> None:
        """A cluster has claimed the log here."""
        self._wait = None
        self._watch.forget()

    def demand(self, cluster_id: str, claims: ClaimManifest, look: int, *, nodes: bool) -> None:
        """Raises `Waits` unless this cluster may follow the cluster of the newest claim now, and
        `NotLooked` if a look is needed first. `look`: the look that its hello has waited for; 0:
        none. `nodes`: also wait for other nodes; otherwise only the former cluster must give no
        sign of life."""
        if not claims.claims or not self._watch.timeout_s:
            return  # the first cluster of this log, or agents without signs
        if self._asked[:2] != (cluster_id, claims.newest):
            self._asked = cluster_id, claims.newest, self._watch.ask()
        if not self.looked(self._asked[2]):
            raise NotLooked(self._asked[2])
        # This look was made during this start, but it may be some seconds old: that is enough to
        # accept a cluster, not to refuse it.
        sight = self._watch.sight
        away = self._away(cluster_id) if nodes and not claims.forced else {}
        old = self._clock.monotonic() - sight.at >= self._watch.timeout_s
        if not look and (sight.alive or away or old):
            raise NotLooked(self._watch.ask())
        if sight.alive:
            why = _still_alive(claims.cluster_id, sight.alive)
            self._note(cluster_id, claims, why, nodes)
            raise Waits(why)
        if away:
            self._note(cluster_id, claims, _named(away), nodes)
            raise Waits(self._text(away))
        if old:
            raise NotLooked(look)

    def _note(self, cluster_id: str, claims: ClaimManifest, why: str, nodes: bool) -> None:
        """Record that the cluster waits, and log changes."""
        now, wait = self._clock.monotonic(), self._wait
        if wait is None or (wait.cluster_id, wait.newest) != (cluster_id, claims.newest):
            wait = _Wait(cluster_id, claims.newest, now, now, nodes)
        over = now - wait.since >= self._timeout_s
        news = "a new cluster waits longer than start_timeout_s" if over else "a new cluster waits"
        if news not in wait.logged:
            self._lines.warning(
                news, cluster_id, cluster=cluster_id, policy=str(self._policy), reason=why
            )
        self._wait = replace(
            wait, asked=now, logged=(*wait.logged, news) if news not in wait.logged else wait.logged
        )

    def _away(self, cluster_id: str) -> dict[str, str]:
        """Node that this cluster waits for → why it does not count yet; {}: no wait."""
        nodes = self._watch.sight.nodes
        away = {
            node: why
            for node, sight in nodes.items()
            if node != self._node and (why := _why_not(sight, cluster_id))
        }
        return away if len(nodes) - len(away) < self._enough(len(nodes)) else {}

    def _enough(self, total: int) -> int:
        return {
            StartPolicy.WAIT_ALL: total,
            StartPolicy.WAIT_MOST: total // 2 + 1,
            StartPolicy.PARTIAL: 0,
        }[self._policy]

    def _text(self, away: Mapping[str, str]) -> str:
        assert self._wait is not None
        waited, whom, total = (
            self._clock.monotonic() - self._wait.since,
            _named(away),
            len(self._watch.sight.nodes),
        )
        needed = "all" if self._enough(total) == total else f"{self._enough(total)} of the"
        rule = f"start_policy {str(self._policy)!r} waits for {needed} {total} nodes of this log"
        if waited < self._timeout_s:
            return (
                f"this cluster does not have the log yet: {whom}; {rule}, and has waited since "
                f"{utc(self._clock.now_ms() - round(waited * 1000))} "
                f"(start_timeout_s {self._timeout_s:g})"
            )
        return (
            f"this cluster did not get the log within start_timeout_s ({self._timeout_s:g} "
            f"s): {whom}; {rule}. "
            "Start the missing agents: then the wait ends without further action. For a node "
            "that will not return: imap-wal forget-node. "
            "To start now without them: imap-wal claim --force, after which a cluster that "
            "still runs there must be restarted. "
            'To start without them every time: start_policy = "wait-most" or "partial"'
        )

    def statistics(self, claims: ClaimManifest) -> dict[str, Any]:
        """The part of the answer to `stat`. `waiting`: "" if no cluster waits here."""
        statistics: dict[str, Any] = {
            "policy": str(self._policy),
            "timeout_s": self._timeout_s,
            "waiting": "",
            "cluster_id": "",
            "waited_s": 0.0,
            "asked_s_ago": 0.0,
            "late": False,
            "nodes": {},
        }
        wait, now = self._wait, self._clock.monotonic()
        if wait is None or wait.newest != claims.newest:
            return statistics
        alive, away = self._watch.sight.alive, self._away(wait.cluster_id) if wait.nodes else {}
        over = "nothing any more: its next request gets the log"
        why = (
            _still_alive(claims.cluster_id, alive) if alive else self._text(away) if away else over
        )
        waited = now - wait.since
        return statistics | {
            "waiting": why,
            "cluster_id": wait.cluster_id,
            "waited_s": waited,
            "asked_s_ago": now - wait.asked,
            "late": waited >= self._timeout_s,
            "nodes": away,
        }


def _why_not(node: Presence, cluster_id: str) -> str:
    """Why a node does not count as a node of this cluster; "" if it does, or may do so later."""
    if node.absent or node.cluster_id in ("", cluster_id):
        return node.absent
    return f"its member is in another cluster, {node.cluster_id}"


def _named(away: Mapping[str, str]) -> str:
    return "; ".join(f"node {node!r}: {why}" for node, why in away.items())


def _still_alive(former: str, alive: str) -> str:
    return (
        f"the former cluster {former} is alive: its members are heard by the agent of {alive}; "
        "waiting until they are no longer heard"
    )
