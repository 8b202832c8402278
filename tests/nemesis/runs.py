"""A run: a cluster under load, one episode after the other, and what was found."""

from __future__ import annotations

import heapq
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.cluster.waiting import until
from tests.nemesis.clients import Attempt, Callers, counts, outages
from tests.nemesis.episode import Episode
from tests.nemesis.episodes import EPISODES
from tests.nemesis.judge import Finding, Judge, reads, seen
from tests.nemesis.linearizability import READS
from tests.nemesis.together import CLEARED, DESTROYED, callers_of_many, emptied_without_fault
from tests.nemesis.world import COLD_KEYS, KEYS, NotWhole, World

WORKING_S = 60.0
REST_S = 2.0
PAUSE_S = 0.02
COLD_PAUSE_S = 0.25
EMPTIED = 0.2
"""The probability that a map is emptied at the end of an episode."""
SHOWN = 3
"""How many findings of a kind are printed for an episode, and how many changes are the slowest."""


@dataclass
class Record:
    """One episode. `write_s` and `read_s`: the longest time without a success, of the worst key and
    of the one in the middle. `write_p99_ms`: 99 of 100 acknowledged changes took at most this.
    `slowest`: the changes that took longest, with seconds since the episode began.
    `refusals`: starts of agents that were refused, as documented. `given_up`: after a refusal, the
    loss of changes was accepted."""

    name: str
    restart: str = ""
    seconds: float = 0.0
    outcomes: dict[str, int] = field(default_factory=dict)
    write_s: tuple[float, float] = (0.0, 0.0)
    read_s: tuple[float, float] = (0.0, 0.0)
    write_p99_ms: float = 0.0
    slowest: list[str] = field(default_factory=list)
    stale_reads: int = 0
    undecided: int = 0
    refusals: int = 0
    given_up: bool = False
    findings: list[Finding] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)

    @property
    def found(self) -> dict[str, int]:
        return dict(Counter(each.judgement for each in self.findings))

    def as_json(self) -> dict[str, Any]:
        return {
            **{name: value for name, value in vars(self).items() if name != "findings"},
            "findings": self.found,
        }


def drawn(seed: int, among: Sequence[str]) -> Iterator[str]:
    """All of them in a random order, then again in another one."""
    rng = Random(seed)
    while True:
        yield from rng.sample(sorted(among), len(among))


class Run:
    def __init__(
        self,
        world: World,
        seed: int,
        *,
        restarts: Callable[[Random], str] | None = None,
        together_pause_s: float = PAUSE_S,
    ) -> None:
        """`restarts` draws how everything is restarted after an episode; "": not at all.
        `together_pause_s`: between two operations on many keys of a caller. A clear is as much
        work as hundreds of other operations."""
        self.world, self.seed, self._together_pause_s = world, seed, together_pause_s
        self._restarts = restarts or (lambda rng: rng.choice([*world.restarts, "", "", ""]))
        self.records: list[Record] = []
        self._history, self._judge = world.history, Judge(world.keys)
        self._callers: list[Callers] = []

    def play(
        self, episodes: Iterable[str | Episode], *, until_moment: float = float("inf")
    ) -> list[Record]:
        """Names, or episodes of the caller."""
        self.world.start()
        connect = self.world.connect
        self._callers = [
            Callers(self._history, connect, KEYS, seed=self.seed, evicted=self.world.evicted)
        ]
        if not self.world.bare:
            self._callers += callers_of_many(
                self._history, connect, self.seed, self._together_pause_s
            )
            cold = Callers(
                self._history,
                connect,
                COLD_KEYS,
                seed=self.seed,
                count=2,
                prefix="cold-",
                pause_s=COLD_PAUSE_S,
            )
            self._callers.append(cold)
        try:
            self._resume()
            self._wait_working()
            for number, each in enumerate(episodes):
                if time.monotonic() > until_moment:
                    break
                episode = EPISODES[each] if isinstance(each, str) else each
                self._one(episode, Random(f"{self.seed} {number} {episode.name}"))
        finally:
            for callers in self._callers:
                callers.stop()
        return self.records

    def _resume(self) -> None:
        for each in self._callers:
            each.resume()

    def _pause(self) -> None:
        for each in self._callers:
            each.pause()

    def _one(self, episode: Episode, rng: Random) -> None:
        record = Record(episode.name)
        self.records.append(record)
        self.world.say(f"--- {len(self.records)}: {episode.name}")
        time.sleep(REST_S)
        begin = time.monotonic()
        self.world.disks.begin()
        try:
            try:
                episode.run(self.world, rng)
            except Exception as error:
                raise NotWhole(f"in the episode: {type(error).__name__}: {error}") from error
            finally:
                record.seconds = time.monotonic() - begin
                record.refusals = self.world.disks.refusals
                record.given_up = self.world.disks.given_up
            self.world.heal()
            self._wait_working()
            self._pause()
            self._empty(rng)
            attempts = self._measured(record, begin)
            if record.given_up:
                self._judge.begin_again(self.world.contents())
                attempts = []
            contents = self._judged(
                record, attempts, (begin, time.monotonic()) if episode.stale else None
            )
            record.restart = self._restarts(rng)
            if record.restart and not self.world.bare:
                self._restarted(record, contents, rng)
        except NotWhole as error:
            record.findings.append(Finding("not whole", str(error)[:2000]))
            self._begin_again(record)
        self.world.say(
            f"{record.outcomes}, no successful write for {record.write_s[0]:.1f} s, "
            f"findings: {record.found or 'none'}"
            + (f", not decided: {record.undecided} keys" if record.undecided else "")
            + (f", refused starts: {record.refusals}" if record.refusals else "")
            + (", changes were given up" if record.given_up else "")
        )
        if record.findings:
            self.world.say("\n".join(story(len(self.records), record)))
        self._resume()

    def _empty(self, rng: Random) -> None:
        """Sometimes clears and destroys maps. This must succeed, because all faults have ended."""
        if self.world.bare:
            return
        client = self.world.client()
        try:
            for map in (CLEARED, DESTROYED):
                if rng.random() < EMPTIED:
                    self.world.say(f"{map} is emptied")
                    for each in emptied_without_fault(client, map):
                        self._history.add(each)
        except AssertionError as error:
            raise NotWhole(f"{error}: {error.__cause__}") from error
        finally:
            client.shutdown()

    def _wait_working(self) -> None:
        """Wait until each key was written successfully once more."""
        start = time.monotonic()
        try:
            until("every key can be written", lambda: not self._not_written(start), WORKING_S, 0.2)
        except AssertionError as error:
            missing = self._not_written(start)
            failed = [
                each for each in self._history.since(start) if each.error and each.key in missing
            ]
            raise NotWhole(
                f"{len(missing)} keys cannot be written: "
                f"{', '.join({each.error for each in failed[-5:]})}"
            ) from error

    def _not_written(self, start: float) -> set[Any]:
        found = {
            each.key
            for each in self._history.since(start)
            if each.outcome == "acknowledged" and each.operation.kind not in READS
        }
        return set(self.world.keys) - set(COLD_KEYS) - found

    def _measured(self, record: Record, begin: float) -> list[Attempt]:
        attempts = self._history.take()
        # Not those of operations on many keys, which wait for each other.
        ours = set(KEYS)
        during = [each for each in attempts if each.ended >= begin and each.key in ours]
        record.outcomes = counts(attempts)
        record.errors = dict(
            Counter(each.error[:200] for each in during if each.error).most_common(8)
        )
        writes = [each for each in during if each.operation.kind not in READS]
        record.write_s, record.write_p99_ms = _worst(writes), _p99_ms(writes)
        slowest = heapq.nlargest(SHOWN, writes, key=_seconds)
        record.slowest = [
            f"{each.operation.kind} {each.key} by {each.operation.client}, "
            f"{each.operation.start - begin:.1f} to {each.ended - begin:.1f} s: {each.outcome}"
            for each in slowest
        ]
        record.read_s = _worst([each for each in during if each.operation.kind in READS])
        return attempts

    def _judged(
        self, record: Record, attempts: list[Attempt], stale: tuple[float, float] | None
    ) -> dict[Any, Any]:
        """The query is first, because a read of a single key may load it."""
        start = time.monotonic()
        contents = self.world.contents()
        queried = seen(contents, self.world.keys, start)
        client = self.world.client()
        try:
            single = reads(client, self.world.keys)
        except AssertionError as error:
            raise NotWhole(f"{error}: {error.__cause__}") from error
        finally:
            client.shutdown()
        if self.world.bare:
            return contents
        values = {
            each.key: each.operation.result for each in single if each.operation.result is not None
        }
        before = self._judge.stale_reads, self._judge.undecided
        record.findings += self._judge.queried(contents, values)
        record.findings += self._judge.judge([*attempts, *queried, *single], stale=stale)
        record.stale_reads, record.undecided = (
            self._judge.stale_reads - before[0],
            self._judge.undecided - before[1],
        )
        return values

    def _restarted(self, record: Record, contents: dict[Any, Any], rng: Random) -> None:
        try:
            self.world.kill_everything()
            self.world.restart(record.restart, rng)
            record.findings += self._judge.restarted(contents, self.world.contents())
            self.world.complete()
        except NotWhole:
            raise
        except Exception as error:
            raise NotWhole(f"at the restart: {type(error).__name__}: {error}") from error

    def _begin_again(self, record: Record) -> None:
        """A cluster that cannot be healed is killed and restarted; the judgement begins again with
        its state."""
        self._pause()
        self._history.take()
        self.world.kill_everything()
        self.world.start()
        self._judge.begin_again(self.world.contents())


def _worst(attempts: Sequence[Attempt]) -> tuple[float, float]:
    found = outages(attempts).values()
    return (round(max(found), 2), round(statistics.median(found), 2)) if found else (0.0, 0.0)


def _seconds(attempt: Attempt) -> float:
    return attempt.ended - attempt.operation.start


def _p99_ms(attempts: Sequence[Attempt]) -> float:
    took = sorted(_seconds(each) for each in attempts if each.outcome == "acknowledged")
    return round(1000 * took[len(took) * 99 // 100], 2) if took else 0.0


# ---- what is printed ----


def failures(run: Run) -> str:
    """All that is needed to repeat the run and to see what happened."""
    lines = [f"seed {run.seed}; episodes: {' '.join(each.name for each in run.records)}"]
    for number, record in enumerate(run.records, 1):
        lines += story(number, record)
    return "\n".join(lines)


def story(number: int, record: Record) -> list[str]:
    """What was found in an episode, a few of each kind."""
    lines = []
    for judgement, count in Counter(each.judgement for each in record.findings).items():
        shown = [each for each in record.findings if each.judgement == judgement][:SHOWN]
        for finding in shown:
            lines += [
                "",
                f"episode {number}, {record.name}: {judgement}: {finding.key or ''} {finding.text}",
                finding.story,
            ]
        if count > len(shown):
            lines.append(f"episode {number}, {record.name}: {judgement}: {count - len(shown)} more")
    return lines
