"""What runs in processes that are killed or stopped. Imported by a fork server, so that a child
starts warm."""

from __future__ import annotations

import os
import signal
import threading
from random import Random
from typing import Any, NoReturn

import imap_wal
from imap_wal.context import Context
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from imap_wal.settings import Settings
from storage_backends.faults import Fault, FaultyStore, Operation, Plan
from storage_backends.local import LocalStore
from tests.faults.workload import Life, Reference
from tests.kit.operations import ACK, operation


def write_and_shrink_until_killed(
    url: str, durability: Any, seed: int, starts: list[int], journal: Any
) -> None:
    """One thread for each of `starts`, from that operation on; archives, rewrites and prunes at the
    same time."""
    store = imap_wal.open(url, node="n", durability=durability, segment_bytes=8 * 1024)
    m = store.map("m")
    pipe = journal.fileno()

    def work(thread: int, number: int) -> None:
        while True:
            kind, pairs = operation(seed, thread, number)
            if kind == "delete":
                m.pop(pairs[0][0], None)
            else:
                m.update(pairs)
            os.write(pipe, ACK.pack(thread, number))
            number += 1

    for thread, number in enumerate(starts):
        threading.Thread(target=work, args=(thread, number), daemon=True).start()
    chance = Random(f"{seed}/{starts}")
    log = ClusterLog(Context(store.committer.log.store), "default", "embedded")
    while True:
        threading.Event().wait(chance.random() / 50)
        store.archive()
        if chance.random() < 0.5:
            rewrite(log, LocalEngine(Settings(preallocate=False)))
            prune(log)


class Deadly(FaultyStore):
    """At the planned operation the process really gets SIGKILL."""

    def _strike(self, fault: Fault, operation: Operation) -> NoReturn:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("killed processes do not continue")


def work_until_killed(root: str, at: int, journal: Any) -> None:
    """The work of `tests.faults.workload`, killed before its `at`-th storage operation; every
    change of the reference is a message."""
    reference = Reference()

    def tell() -> None:
        journal.send((reference.state, reference.pending, reference.clock.now_ms()))

    reference.on_change = tell
    life = Life(Deadly(LocalStore(root), Plan((Fault("kill", at=at),))), reference)
    life.play()
    life.close()
    journal.send("done")


def write_until_refused(url: str, journal: Any) -> None:
    """Puts new keys and reports the outcome of each; the parent stops and resumes this process.
    Ends when a put is refused."""
    store = imap_wal.open(url, node="n", segment_bytes=4096)
    m = store.map("m")
    number = 0
    while True:
        number += 1
        journal.send(("begin", number))
        try:
            m[f"old{number}"] = "x" * 100
        except imap_wal.OutcomeUnknown:
            journal.send(("unknown", number))
            break
        except imap_wal.ImapWalError as error:
            journal.send((type(error).__name__, number))
            break
        journal.send(("ack", number))
    for attempt in range(3):  # later attempts are not acknowledged either
        try:
            m[f"late{attempt}"] = 1
            journal.send(("ack", -attempt))
        except imap_wal.ImapWalError as error:
            journal.send((type(error).__name__, -attempt))
    try:
        store.archive()
        journal.send(("archived", 0))
    except imap_wal.ImapWalError as error:
        journal.send((type(error).__name__, 0))
    try:
        store.close()
    except imap_wal.ImapWalError as error:
        journal.send((type(error).__name__, 0))
    journal.send(("end", 0))
