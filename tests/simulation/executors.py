"""Executors of Spark: processes that run a task of a rewrite.

A task gets the parts of Spark, of the storage and of the operating system that belong to the
process in which it runs. The replacements exist as long as simulations run: a task that is late, or
whose result is not needed, uses them too.
"""

from __future__ import annotations

from typing import Any

from greenlet import getcurrent

from imap_wal.context import Context
from imap_wal.security.encryption import keys_from
from tests.simulation.medium import open_sim
from tests.simulation.world import Process

_KEY = "executor"


def executor(actor: Any, name: str, *, seed: int, offset_ms: int = 0) -> Process:
    """A process on the machine of `actor`, with its storage."""
    process: Process = actor.world.process(
        f"{actor.spec.name}/{name}", actor.spec.machine, offset_ms, seed
    )
    process.memory[_KEY] = actor
    return process


def patches() -> list[tuple[Any, str, Any]]:
    """Replacements in the modules that run in executors."""
    from pyspark_imap_wal import rewrite_engine

    return [
        (rewrite_engine, "open_context", _open_context),
        (rewrite_engine, "SystemRandomness", lambda: getcurrent().process.randomness),
    ]


def _open_context(*_: Any, **__: Any) -> Context:
    process = getcurrent().process
    actor = process.memory[_KEY]
    store = open_sim(actor.world, process, actor.stage.media, actor.stage.kind)
    return Context(store, keys_from(actor.world.keys))
