"""A limit on the number of maps: each map costs files in archives and snapshots."""

from __future__ import annotations

from collections.abc import Callable, Set

from imap_wal.errors import NotAppended


class TooManyMaps(NotAppended):
    """A change is of a new map, and the log has as many maps as it may have."""


class MapLimit:
    """Used by the serving thread. `most`: the setting `max_maps`. `of_log`: the maps in the logs
    when they were last read; None: they were not read since the start."""

    def __init__(self, most: int, of_log: Callable[[], Set[str] | None]) -> None:
        self._most, self._of_log = most, of_log
        self._known: set[str] = set()

    def demand(self, names: Set[str]) -> None:
        """Admit changes of these maps. `TooManyMaps` if one of them is new and there is no room:
        maps that the log has are always admitted."""
        new = names - self._known
        if not new:
            return
        of_log = self._of_log()
        if of_log is not None:
            self._known |= of_log
            new = names - self._known
        if new and len(self._known) + len(new) > self._most:
            what = f"map {min(new)!r} is new, and there are {len(self._known)} maps"
            if of_log is None:
                what = f"map {min(new)!r} may be new: the logs were not read since the start"
            raise TooManyMaps(
                f"{what}; max_maps is {self._most}. Raise it in the agent's configuration, or "
                "remove maps with `imap-wal drop` and start the agent again"
            )
        self._known |= new
