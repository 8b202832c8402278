"""Key listings under way: the keys of a map, page by page, complete or with an error.

A cursor is `[listing, page]`. Only two pages can be requested: the next one, and the last one that
was answered (its answer may have been lost with a connection). Any other page, and any change of
the index that affects the listing, gives `ListingGone`: the listing must begin again. Each page has
the number of keys sent so far, so the reader knows that none is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from imap_wal.clock import Randomness
from imap_wal.errors import ImapWalError
from imap_wal.read.partitions import Partitions
from imap_wal.read.view import LiveView

LISTINGS_MAX = 64
"""So many listings are kept; beyond that, the one that has waited longest is dropped."""
PAGE_BYTES = 4 * 1024 * 1024
"""A page ends with the key that takes it past this size: each listing keeps its last page."""
PAGE_KEYS_MAX = 100_000


class ListingGone(ImapWalError):
    """This listing cannot continue. Begin it again."""


@dataclass(frozen=True, slots=True)
class Page:
    """`cursor` of the next page; None at the end, which has no keys. `total`: keys of this page and
    all before it."""

    cursor: list[str | int] | None
    keys: list[bytes]
    total: int


class Listing:
    """One listing: hands out its pages in order, and the last one again."""

    def __init__(self, token: str, name: str, partitions: Partitions | None, view: LiveView, limit: int) -> None:
        """`partitions`: list only their keys; None: all keys."""
        self.what = (name, partitions)
        self.name = name
        self._token, self._view, self._version = token, view, view.version
        self._batches = view.keys(name, limit, partitions)
        self._left: Iterator[bytes] = iter(())
        self._number = 0
        self._last: Page | None = None

    def has(self, number: int) -> bool:
        """Whether that page can be requested; the first is 1."""
        return (self._last is not None and number == self._number) or (number == self._number + 1 and not self._ended)

    @property
    def _ended(self) -> bool:
        return self._last is not None and self._last.cursor is None

    def page(self, number: int, limit: int) -> Page:
        """A page that it has. `ListingGone`."""
        self._check()
        if self._last is not None and number == self._number:
            return self._last
        keys: list[bytes] = []
        size = 0
        while not keys:
            for key in self._left:
                keys.append(key)
                size += len(key)
                if len(keys) >= limit or size >= PAGE_BYTES:
                    break
            else:
                batch = next(self._batches, None)
                if batch is None:
                    break
                self._left = iter(batch)
        self._check()
        total = len(keys) + (self._last.total if self._last is not None else 0)
        self._number = number
        self._last = Page([self._token, number + 1] if keys else None, keys, total)
        return self._last

    def _check(self) -> None:
        if self._view.version != self._version:
            raise ListingGone(f"the index was built anew while the keys of map {self.name!r} were listed; begin again")


class Listings:
    """All listings of one view. Used by one thread."""

    def __init__(self, view: LiveView, randomness: Randomness) -> None:
        self._view, self._randomness = view, randomness
        self._listings: dict[str, Listing] = {}

    def page(self, name: str, cursor: tuple[str, int] | None, limit: int, partitions: Partitions | None = None) -> Page:
        """The page at `cursor`; None begins a listing of what the view has, in all partitions or in
        some. `ListingGone`, and what reading the index raises."""
        limit = max(1, min(limit, PAGE_KEYS_MAX))
        if cursor is None:
            token, number = self._randomness.token().hex(), 1
            listing = Listing(token, name, partitions, self._view, limit)
        else:
            token, number = cursor
            found = self._listings.get(token)
            if found is None or found.what != (name, partitions) or not found.has(number):
                raise ListingGone(
                    f"page {number} of a listing of the keys of map {name!r} was requested; this agent has no such listing, or cannot answer that page any more: begin again"
                )
            listing = self._listings.pop(token)
        page = listing.page(number, limit)
        # Only now: a listing with a failed page cannot continue, and must not seem complete.
        self._listings[token] = listing
        while len(self._listings) > LISTINGS_MAX:
            del self._listings[next(iter(self._listings))]
        return page
