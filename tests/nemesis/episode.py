"""What an episode is, and how modules of episodes collect theirs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.nemesis.storage import Storage
from tests.nemesis.world import MACHINES, World

Play = Callable[[World, Random], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """`stale`: a member may be out of date without noticing, so its answers from memory alone are
    not judged while the fault lasts. `bare`: makes sense without agents. `disks`: it needs own
    disks. `copies`: so many, at least."""

    name: str
    run: Play
    stale: bool = False
    bare: bool = True
    disks: bool = False
    copies: int = 1

    def fits(self, storage: Storage, *, bare: bool = False) -> bool:
        """Whether the faults of this episode exist in a world with this storage."""
        fits = (storage.own_disks or not self.disks) and storage.copies >= self.copies
        return fits and (self.bare or not bare)


class Episodes(dict[str, Episode]):
    """Episodes by name. `episode` is a decorator of the functions that play them."""

    def episode(
        self, *, stale: bool = False, bare: bool = True, disks: bool = False, copies: int = 1
    ) -> Callable[[Play], Play]:
        def register(play: Play) -> Play:
            name = play.__name__.replace("_", "-")
            self[name] = Episode(
                name=name, run=play, stale=stale, bare=bare, disks=disks, copies=copies
            )
            return play

        return register


def some(rng: Random) -> int:
    return rng.choice(MACHINES)
