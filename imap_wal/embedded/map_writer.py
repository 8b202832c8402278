"""Writes the changes of maps to the log.

changes ─▶ number, encode, publish (one lock: ring order is request order) ─▶ committer ─▶ memory

A `batch` is a `WriteBatch`: changes of one map. A `CommitRequest` has one or more of them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import cast

from imap_wal.clock import Clock
from imap_wal.embedded.changes import MapState, WriteBatch, apply
from imap_wal.embedded.decisions import Outlook, Undecided, made
from imap_wal.errors import ImapWalError
from imap_wal.forked import Openness
from imap_wal.format import CLEARS, ENTRIES, Position
from imap_wal.retention.log_writer import LogWriter
from imap_wal.write.ring import CommitRequest


class _Turn:
    """The steps of a thread that waits for changes of others, and how they ended."""

    __slots__ = ("commit", "error", "over", "steps")

    def __init__(self, steps: Sequence[WriteBatch]) -> None:
        self.steps = steps
        self.over = False
        self.commit: CommitRequest | None = None
        self.error: ImapWalError | None = None


class MapWriter:
    """Thread-safe. `knows_all`: the store knows all keys in its log, so one entry can clear a
    map."""

    def __init__(self, writer: LogWriter, incarnation: int, *, knows_all: bool) -> None:
        log = self.log = writer.log
        self._ring, self._committer, self.signal = writer.ring, writer.committer, writer.signal
        self.knows_all = knows_all
        self.max_value_bytes = log.settings.max_value_bytes
        self._early = log.settings.acknowledges_early
        self._clock: Clock = log.clock
        self._incarnation, self._session = incarnation, log.new_session()
        self._request = 0
        self.order_lock = threading.Lock()
        self._turns: deque[_Turn] = deque()
        self._turns_lock = threading.Lock()
        self.some_unlogged = False
        """Whether there is a map that is only in memory."""
        self.openness = Openness("store")

    def check_open(self) -> None:
        """Raises `Closed` after the store was closed, and `Fenced` in a forked child."""
        if self.openness.closed:
            self.openness.check()

    @property
    def closed(self) -> bool:
        """Whether the store was closed. Also in a forked child."""
        return self.openness.closed

    @property
    def failure(self) -> ImapWalError | None:
        """Why nothing more can be written; None if it can."""
        return self._committer.failure

    def at_rest(self, state: MapState) -> tuple[Position, MapState]:
        """Commit all waiting changes. Returns the end of the log, and a copy of what the map has at
        that moment. Raises the error of a commit that failed."""
        with self.order_lock:
            return self._committer.at_rest(lambda end: (end, state.copy(self.now_ms())))

    def change(self, batches: Sequence[WriteBatch]) -> None:
        """Log the changes as one commit, apply them in memory, and return when the durability
        setting allows it. Changes of unlogged maps are applied after the commit. Raises the errors
        of `submit`, and that of the commit, such as `OutcomeUnknown` or `Fenced`."""
        if self.some_unlogged:
            unlogged = [batch for batch in batches if not batch.state.logged]
            if unlogged:
                logged = [batch for batch in batches if batch.state.logged]
                if logged:
                    self.change(logged)
                self.check_open()
                with self.order_lock:
                    apply(unlogged)
                return
        commit = self.submit(batches)
        if not self._early:
            self._await(commit)

    def submit(self, batches: Sequence[WriteBatch]) -> CommitRequest:
        """Number, encode and publish the changes as one request. The caller must wait for it
        (`committer.wait`). Raises `Closed`, `TooLarge` if one commit cannot have so many changes or
        bytes, and the error of an earlier commit if commits are not awaited."""
        self.check_open()
        with self.order_lock:
            return self._publish(batches)

    def evaluate(self, steps: Sequence[WriteBatch]) -> None:
        """Log and apply the steps in one commit. A decision among them sees all changes that were
        published before it. Raises the errors of `change`."""
        for logged in (True, False):
            of_kind = [step for step in steps if step.state.logged is logged]
            if of_kind:
                self._evaluate(of_kind, logged)

    def _evaluate(self, steps: Sequence[WriteBatch], logged: bool) -> None:
        self.check_open()
        try:
            if logged and self._turns:
                raise Undecided  # do not overtake those that wait
            with self.order_lock:
                commit = self._decide(steps, logged)
        except Undecided:
            commit = self._decide_after_others(steps)
        if commit is not None and not self._early:
            self._await(commit)
            commit.wake()  # another thread may wait for the same commit

    def _decide_after_others(self, steps: Sequence[WriteBatch]) -> CommitRequest | None:
        """Evaluate the steps after the changes that they depend on are committed. All threads that
        wait for this share one evaluation and one commit: if each had one of its own, many threads
        that add to one number would need a sync each."""
        turn = _Turn(steps)
        if threading.current_thread() is threading.main_thread():
            while not turn.over:  # alone: a Ctrl-C here must not affect the others
                self._committer.commit_ready()
                self._take_turns([turn])
        else:
            self._turns.append(turn)
            try:
                with self._turns_lock:
                    while not turn.over:
                        self._committer.commit_ready()  # more turns arrive meanwhile
                        self._take_turns(list(self._turns))
            finally:
                self._turns.remove(turn)
        if turn.error is not None:
            raise turn.error
        return turn.commit

    def _take_turns(self, turns: Sequence[_Turn]) -> None:
        """Evaluate all of them in one commit, unless a change that they depend on is not committed
        yet."""
        turns = [turn for turn in turns if not turn.over]
        try:
            self.check_open()
            with self.order_lock:
                commit = self._decide([step for turn in turns for step in turn.steps], logged=True)
        except Undecided:
            return
        except ImapWalError as error:
            if len(turns) > 1:  # perhaps they are too large for one commit
                for turn in turns:
                    self._take_turns([turn])
                return
            turns[0].error = error
        else:
            for turn in turns:
                turn.commit = commit
        for turn in turns:
            turn.over = True

    # The methods below are called with the order lock held, so nothing is published meanwhile.

    def _decide(self, steps: Sequence[WriteBatch], logged: bool) -> CommitRequest | None:
        """Publish the steps, or apply them if their maps are not logged. Returns None if nothing
        was published. Raises `Undecided`."""
        batches = made(steps, self._outlook)
        if not logged:
            apply(batches)
        return self._publish(batches) if logged and batches else None

    def _outlook(self, state: MapState) -> Outlook:
        return Outlook(state, self.now_ms(), self._pending(state))

    def _pending(self, state: MapState) -> list[WriteBatch]:
        """The published changes of this map that are not in memory yet."""
        if self._early or not state.logged:
            return []
        waiting = [commit for commit in self._ring.waiting() if not commit.done]
        return [
            batch
            for commit in waiting
            for batch in cast("Sequence[WriteBatch]", commit.content)
            if batch.state is state
        ]

    def _publish(self, batches: Sequence[WriteBatch]) -> CommitRequest:
        if self._early and self._committer.failure is not None:
            raise self._committer.failure
        now = self._clock.now_ms()
        request = self._request
        payload: list[bytes] = []
        kind = ENTRIES
        for batch in batches:
            payload += batch.pack(now, self._incarnation, self._session, request + 1)
            request += len(batch)
            if batch.kind == CLEARS:
                kind = CLEARS
        commit = CommitRequest(
            payload,
            request - self._request,
            lambda: apply(batches),
            kind,
            session=self._session,
            request=request,
            content=batches,
        )
        self._request = request
        self._committer.submit(commit)
        if self._early:
            apply(batches)
        return commit

    def _await(self, commit: CommitRequest) -> None:
        self._committer.wait(commit)
        if commit.error is not None:
            raise commit.error

    @property
    def bounds(self) -> tuple[int, int]:
        """How many operations and how many bytes may wait for the committer."""
        settings = self.log.settings
        return settings.ring_slots, settings.ring_bytes

    def now_ms(self) -> int:
        return self._clock.now_ms()
