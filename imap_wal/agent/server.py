"""The agent's loop: receive all waiting requests, put the appends in the ring, commit once, answer
(`handler`).

While a commit runs, requests collect in the socket: the higher the load, the larger the commits.
The write path uses only one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import Any

import structlog

from imap_wal.agent.access.admission import ClientKeys
from imap_wal.agent.access.peers import demand
from imap_wal.agent.bounds import bounds
from imap_wal.agent.config import AgentConfig
from imap_wal.agent.handler import READS, RequestHandler
from imap_wal.agent.lane import TURN_S, Lane
from imap_wal.agent.lines import Lines
from imap_wal.agent.membership.reader_stalls import Stall
from imap_wal.agent.mender import AgentLog
from imap_wal.agent.monitoring.health import why_log_failed, why_not_ready
from imap_wal.agent.monitoring.listener import HttpListener
from imap_wal.agent.monitoring.snapshot import AgentSnapshot
from imap_wal.agent.open_log import OpenLog
from imap_wal.agent.own_disk.serving import TailServer
from imap_wal.agent.own_disk.tails import AgentTails
from imap_wal.agent.pending import Pending
from imap_wal.agent.reads.merges import Merges
from imap_wal.agent.reads.reads import Connections, Reads
from imap_wal.agent.reads.work import Work
from imap_wal.agent.requests import (
    Bye,
    Hello,
    Malformed,
    Stat,
    View,
)
from imap_wal.agent.room import Room
from imap_wal.agent.transport.endpoint import IPC, EndpointLock
from imap_wal.agent.transport.gate import check_pair
from imap_wal.agent.transport.listening import listen
from imap_wal.agent.transport.router import Message
from imap_wal.checks import mode
from imap_wal.clock import Clock, Randomness, SystemClock, SystemRandomness
from imap_wal.context import open_context
from imap_wal.errors import Fenced
from imap_wal.placement.router import Tails
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.view import MaterializedView
from imap_wal.worker import Worker, trouble
from imap_wal.write.opening import holder_text
from storage_backends import NoSpace, SegmentStore
from storage_backends.reserve import disks_of

TICK_MS = 200
"""The time that a turn waits for messages."""
LOOK_TICK_MS = 10
"""The same, while a hello waits for a look at the signs of other agents."""
STOP_S = 1.0
"""How long a stop serves waiting hellos and similar requests; the rest is refused."""

STOPS = "the agent is stopping"

SLOW = Hello | View | Stat | Bye | Malformed
"""Requests without changes, which may take as long as a commit: they wait in the lane."""

_log = structlog.get_logger("imap_wal.agent")


class Agent:
    """One run of the agent. `serve` returns after `stop`. Raises the errors of `EndpointLock` and
    `open_node_log`."""

    def __init__(self, config: AgentConfig) -> None:
        self.config = config
        clock, randomness = SystemClock(config.clock_offset_ms), SystemRandomness()
        context = open_context(
            config.place,
            tails=partial(_tails, config, clock),
            clock=clock,
            randomness=randomness,
        )
        self._clock, self._store = clock, context.store
        self._all_logs = ClusterLog(context, config.namespace, config.cluster)
        self._stopping = False
        self._started = self._turn_began = clock.monotonic()
        self._lines, self._room = Lines(clock), Room()
        self._lane = Lane(clock, self._room)
        self.bounds = bounds(
            config.connections_max,
            config.log.max_value_bytes,
            local=config.endpoint.startswith(IPC) and not config.tail_endpoint,
        )
        with ExitStack() as opened:
            opened.callback(self._store.close)
            # Before the log: an agent that is refused here must change nothing.
            endpoint = _endpoint(config, self._clock)
            opened.callback(endpoint.release)
            rules = config.access.rules(clock)
            if isinstance(rules, ClientKeys):
                check_pair(rules.own)
            self._agent_log = AgentLog(config, self._all_logs)
            opened.callback(self._log.close, clean=True)
            self._tail_server = self._serve_tail()
            if self._tail_server is not None:
                opened.callback(self._tail_server.close)
            self._router = listen(endpoint, self.bounds, rules, clock, self._lines)
            opened.pop_all()
        self._work = Work()
        self._view = MaterializedView(
            self._all_logs,
            config.log,
            self._work.done,
            lambda: self._log.sessions.clocks.expired_until_ms(),  # noqa: PLW0108  # of the log then
        )
        self._reads = self._reads_with(randomness)
        self._handler = RequestHandler(
            config,
            self.bounds,
            clock,
            self._lane,
            self._room,
            self._lines,
            self._agent_log,
            self._router,
            self._reads,
            self.statistics,
        )
        self._http: HttpListener | None = None
        if config.http_address:
            from imap_wal.agent.monitoring.pages import listener

            self._http = listener(config.http_address, self.snapshot, clock)

    @property
    def _log(self) -> OpenLog:
        return self._agent_log.now

    def _serve_tail(self) -> TailServer | None:
        """Serve this node's own disk to other agents, if its segments are there."""
        disk, access = self._all_logs.context.own_disk, self.config.tail_access
        if disk is None or disk.disk is None:
            return None
        rules = access.client_keys(self._clock)
        return TailServer(disk, self.config.tail_endpoint, rules, self._clock, self._lines)

    def _reads_with(self, randomness: Randomness) -> Reads:
        disk = self._all_logs.context.own_disk
        merges = Merges(
            self._view,
            lambda: self._log.writer.committer.statistics.bytes,
            self._clock,
            tail_timeout_s=self.config.tail_timeout_s,
            waits=lambda: disk is not None and disk.waits,
            at_once=self.config.restore_at_start,
        )
        connections = Connections(
            self._router.outbox,
            self._router.shut,
            lambda message: demand(self._router.peer(message.user), message.request),
        )
        return Reads(
            merges,
            connections,
            clock=self._clock,
            randomness=randomness,
            room=self._room,
            lines=self._lines,
            work=self._work,
        )

    def stop(self) -> None:
        """Make `serve` return after the current commit. Safe in a signal handler."""
        self._stopping = True

    def serve(self, ready: Callable[[], None] | None = None) -> None:
        """Serve requests until `stop`; then commit the waiting changes and write the clean-shutdown
        frame. Raises `Fenced` if another process takes over the log."""
        if self._http is not None:
            self._http.worker.start()
        if ready is not None:
            ready()
        clean = False
        try:
            while not self._stopping:
                self._turn(TICK_MS)
            self._turn(0)  # requests that arrived before the signal
            self._end_lane()
            clean = True
        finally:
            with ExitStack() as closing:  # each callback runs, even if another one raises
                closing.callback(self._store.close)
                closing.callback(lambda: self._router.close(wait=self._reads.worker.stop(0)))
                if self._tail_server is not None:
                    closing.callback(self._tail_server.close)
                closing.callback(self._agent_log.close, clean)
                closing.callback(self._close_reads)
                if self._http is not None:
                    closing.callback(self._http.close)
        _log.info("stopped", node=self.config.node, appends=self._handler.appends)

    def _close_reads(self) -> None:
        self._reads.close()
        left = self._reads.unanswered()
        for message in left:
            self._handler.error(message.sender, message.request.number, "not-ready", STOPS)

    # ---- one turn ----

    def _turn(self, timeout_ms: int) -> None:
        self._turn_began = self._clock.monotonic()
        pending: list[Pending] = []
        if self._handler.kept:
            timeout_ms = min(timeout_ms, LOOK_TICK_MS)
        for message in self._router.receive(self._lane.wait_ms(timeout_ms)):
            if isinstance(message.request, SLOW):
                self._put_aside(message, pending)
            else:
                self._handler.handle(message, pending)
        if self._handler.kept:
            with self._reads.work.after():
                self._handler.take_up(pending)
        self._handler.commit(pending)
        for message in self._reads.unanswered():  # the thread of reads is dead
            self._read_refused(message)
        self._serve_lane()
        self._lines.report_omitted()
        for sender in self._router.gone():
            self._forget(sender)
        self._agent_log.mend(lambda: why_log_failed(self.snapshot()))

    def _put_aside(self, message: Message, pending: list[Pending]) -> None:
        """Queue a request in the lane."""
        if isinstance(message.request, Malformed) and message.kind not in READS:
            self._log.sessions.shut(message.sender)  # at once, before the request is served
        if not self._lane.put(message):
            self._handler.refuse(
                message, "not-ready", "too many requests wait for their answers", pending
            )

    def _serve_lane(self) -> None:
        """Serve due requests from the lane: only one while changes arrive."""
        until = self._clock.monotonic() + TURN_S
        while (message := self._lane.take()) is not None:
            began = self._clock.monotonic()
            self._serve_waiting(message)
            self._lane.took(began)
            if self._lane.busy or self._clock.monotonic() >= until:
                return

    def _end_lane(self) -> None:
        """At a stop: serve waiting requests for `STOP_S`, and refuse the rest."""
        until = self._clock.monotonic() + STOP_S
        while (message := self._lane.take(at_once=True)) is not None:
            if self._clock.monotonic() < until:
                self._serve_waiting(message)
            else:
                self._handler.error(message.sender, message.request.number, "not-ready", STOPS)
        for message in self._handler.kept.take_all():
            self._handler.error(message.sender, message.request.number, "not-ready", STOPS)

    def _serve_waiting(self, message: Message) -> None:
        pending: list[Pending] = []
        with self._reads.work.after():
            self._handler.handle(message, pending)
            self._handler.commit(pending)

    def _forget(self, sender: bytes) -> None:
        """A connection has ended."""
        self._log.sessions.gone(sender)
        self._lane.forget(sender)
        self._reads.forget(sender)
        self._handler.kept.take(sender)

    def _read_refused(self, message: Message) -> None:
        self._handler.error(
            message.sender,
            message.request.number,
            "restore-failed",
            f"{self._reads.worker.trouble}; start the agent again",
        )

    # ---- statistics ----

    def _workers(self) -> list[Worker]:
        """The current background threads."""
        return [
            self._reads.worker,
            *self._router.workers,
            *self._agent_log.workers,
            *([self._tail_server.worker] if self._tail_server is not None else []),
            *([self._http.worker] if self._http is not None else []),
        ]

    def snapshot(self) -> AgentSnapshot:
        """The state of this moment. Safe to call from any thread: it reads values that are replaced
        as a whole, and waits for nothing."""
        config, log, handler, reads = self.config, self._log, self._handler, self._reads
        committer, claims, start = log.writer.committer, log.sessions.claims, log.sessions.start
        failure, now = committer.failure, self._clock.monotonic()
        router, (members, superseded) = self._router, log.sessions.connected()
        stalls = log.sessions.stalls
        return AgentSnapshot(
            namespace=config.namespace,
            cluster=config.cluster,
            node=config.node,
            durability=str(config.log.durability),
            epoch=log.node_log.epoch,
            uptime_seconds=now - self._started,
            failure=str(failure or ""),
            disk_full=_is_full(failure),
            fenced=isinstance(failure, Fenced),
            stopping=self._stopping,
            turn_seconds=max(0.0, now - self._turn_began),
            threads={worker.name: worker.state for worker in self._workers()},
            appends=handler.appends,
            duplicates=handler.duplicates,
            errors=dict(handler.errors),
            commit=committer.statistics,
            ring=log.writer.ring.statistics,
            ring_bytes_max=config.log.ring_bytes,
            maintenance=log.writer.maintenance.statistics,
            compaction=log.compactor.statistics,
            compaction_part=log.compactor.part,
            lease_age_s=committer.lease_age_s,
            connections=router.statistics,
            revoked=router.revoked,
            peers_refused=router.refused,
            incarnation=claims.known.newest,
            alive=start.alive(),
            absent=log.sessions.absent,
            compaction_age_s=self._age_s(log.sessions.upkeep.compacted_ms),
            backup_age_s=self._age_s(log.sessions.upkeep.backed_up_ms),
            unread_bytes={name: stall.unread_bytes for name, stall in stalls.streams.items()},
            stalled_s={name: self._stalled_s(stall) for name, stall in stalls.streams.items()},
            tables_stalled_s=max(map(self._stalled_s, stalls.tables.values()), default=None),
            clock_skew_ms=log.sessions.clocks.skew_ms,
            clock_doubt=log.sessions.clocks.doubt,
            waiting_seconds=start.waiting_s(),
            members=members,
            superseded=superseded,
            settling=log.sessions.settling.partitions,
            settling_seconds=log.sessions.settling.seconds,
            settling_running_s=log.sessions.settling.running_s,
            maps=log.sessions.reports.counts,
            ready_timeout_s=config.ready_timeout_s,
            reads=reads.served,
            unmerged_bytes=reads.merges.unmerged_bytes,
            merged=self._view.merged,
            merge=self._work.merge,
            merge_error=reads.merges.error,
            conflicts=self._view.conflicts_seen,
            disks=disks_of(self._store),
            positions=self._view.positions,
            upload=log.uploads.statistics if log.uploads is not None else None,
            tail_reads=self._tail_server.served if self._tail_server is not None else 0,
            left_out=reads.merges.missing,
            read_from_copies=reads.merges.copied,
        )

    def _age_s(self, at_ms: int) -> float | None:
        return max(0, self._clock.now_ms() - at_ms) / 1000 if at_ms else None

    def _stalled_s(self, stall: Stall) -> float:
        return self._age_s(stall.since_ms) or 0.0

    def statistics(self) -> dict[str, Any]:
        """The answer to `stat`, in plain values. It may ask the storage for the newest claim."""
        now, log = self.snapshot(), self._log
        # Without metrics an agent is healthy: a port that is in use must not stop its member.
        http = self._http.worker.name if self._http is not None else None
        troubles = [trouble(name, now.threads[name]) for name in now.threads if name != http]
        failure = "; ".join(reason for reason in (now.failure, *troubles) if reason)
        return {
            "healthy": not failure,
            "state": why_not_ready(now),
            "failure": failure,
            "threads": {name: asdict(state) for name, state in now.threads.items()},
            "node": now.node,
            "epoch": now.epoch,
            "durability": now.durability,
            "uptime_seconds": now.uptime_seconds,
            "http_address": self._http.address if self._http is not None else "",
            "appends": now.appends,
            "duplicates": now.duplicates,
            "errors": now.errors,
            "reads": now.reads,
            "unmerged_bytes": now.unmerged_bytes,
            "merge_error": now.merge_error,
            "position": str(log.node_log.end),
            "upload": asdict(now.upload) if now.upload is not None else None,
            "left_out": dict(now.left_out),
            "read_from_copies": dict(now.read_from_copies),
            "clock_doubt": now.clock_doubt,
            "absent": list(now.absent),
            "claim": log.sessions.claim(),
            "members": log.sessions.members(),
            "start": log.sessions.start.statistics(log.sessions.claims.known),
            "archive_error": now.maintenance.archive_error,
            "retention_error": now.maintenance.retention_error,
            "compaction_error": now.compaction.error,
            "commit": asdict(now.commit),
            "ring": asdict(now.ring),
            "connections": {
                **asdict(now.connections),
                "revoked": now.revoked,
                "peers_refused": now.peers_refused,
            },
        }


def _is_full(failure: BaseException | None) -> bool:
    """Whether an error, or what it was raised from, is a full storage."""
    while failure is not None and not isinstance(failure, NoSpace):
        failure = failure.__cause__ or failure.__context__
    return failure is not None


def _tails(config: AgentConfig, clock: Clock, root: SegmentStore) -> Tails:
    """How this agent reads the disks of other nodes."""
    key = config.tail_access.own_key() if config.tail_endpoint else None
    return AgentTails(root, key, clock)


def _endpoint(config: AgentConfig, clock: Clock) -> EndpointLock:
    owner = f"the agent of node {config.node!r} of {config.namespace}/{config.cluster}"
    return EndpointLock(
        config.endpoint,
        owner,
        holder_text(owner, clock),
        node=config.node,
        takeover=config.takeover,
        mode=mode(config.endpoint_mode, "endpoint_mode"),
    )
