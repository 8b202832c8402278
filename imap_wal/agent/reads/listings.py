"""Key listings: the keys of a map, page by page. A listing is complete, or ends with an error.

A cursor is `[listing, page]`. Only two pages can be requested: the next one, and the last answered
one (its answer may have been lost with a connection). Any other page, and any change of the index
that affects the listing, raises `ListingGone`: the listing must begin again. Each page has the
number of keys sent so far, so that the reader knows that no key is missing.

A listing belongs to the connection that requested its last page. When that connection ends, another
one may continue the listing for a while. Memory is limited for each connection and for all
together; the connection with the most memory is the first to lose a listing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from imap_wal.clock import Randomness
from imap_wal.errors import ImapWalError
from imap_wal.partitions import Partitions
from imap_wal.read.view import MaterializedView

LISTINGS_MAX = 4
"""Listings of one connection; beyond that, the one that was unused longest is dropped."""
ABANDONED_MAX = 16
"""The same for all ended connections together."""
LISTINGS_BYTES = 256 * 1024 * 1024
"""Memory of all listings together."""
KEY_BYTES = 64
"""The approximate memory of a key besides its bytes."""
PAGE_BYTES = 4 * 1024 * 1024
"""A page ends with the key that exceeds this size. Each listing keeps its last page."""
PAGE_KEYS_MAX = 100_000
BATCH_KEYS = 10_000
"""Keys that are read from the index at once."""
NO_CONNECTION = b""
"""The owner of the listings of ended connections."""


class ListingGone(ImapWalError):
    """This listing cannot continue. Begin it again."""


@dataclass(frozen=True, slots=True)
class Page:
    """`cursor`: of the next page; None at the end, on a page without keys. `total`: the number of
    keys on this page and all earlier ones."""

    cursor: list[str | int] | None
    keys: list[bytes]
    total: int


class Listing:
    """One listing: returns its pages in order, and the last one again."""

    def __init__(
        self,
        token: str,
        name: str,
        partitions: Partitions | None,
        view: MaterializedView,
        limit: int,
    ) -> None:
        """`partitions`: list only their keys; None: all keys."""
        self.what = (name, partitions)
        self.name = name
        self._token, self._view, self._version = token, view, view.version
        self._batches = view.keys(name, min(limit, BATCH_KEYS), partitions)
        self._left: Iterator[bytes] = iter(())
        self._left_bytes = self._page_bytes = 0
        self.owner = NO_CONNECTION
        """The sender that requested its last page."""
        self._number = 0
        self._last: Page | None = None

    @property
    def memory(self) -> int:
        """Its memory in bytes: the last page, and keys that were read for the next pages."""
        return self._left_bytes + self._page_bytes

    def has(self, number: int) -> bool:
        """Whether this page can be requested; the first page is 1."""
        return (self._last is not None and number == self._number) or (
            number == self._number + 1 and not self._ended
        )

    @property
    def _ended(self) -> bool:
        return self._last is not None and self._last.cursor is None

    def page(self, number: int, limit: int) -> Page:
        """Return a page for which `has` is True. Raises `ListingGone`."""
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
                self._left_bytes = _size(batch)
        self._check()
        total = len(keys) + (self._last.total if self._last is not None else 0)
        self._number, self._page_bytes = number, _size(keys)
        self._last = Page([self._token, number + 1] if keys else None, keys, total)
        return self._last

    def _check(self) -> None:
        if self._view.version != self._version:
            raise ListingGone(
                f"the index was rebuilt while the keys of map {self.name!r} were listed; "
                "begin again"
            )


class Listings:
    """All listings of one view. Used by one thread."""

    def __init__(self, view: MaterializedView, randomness: Randomness) -> None:
        self._view, self._randomness = view, randomness
        self._listings: dict[str, Listing] = {}

    def page(
        self,
        name: str,
        cursor: tuple[str, int] | None,
        limit: int,
        partitions: Partitions | None = None,
        sender: bytes = NO_CONNECTION,
    ) -> Page:
        """The page at `cursor`, for this connection; None begins a listing of the keys in all or
        some partitions. Raises `ListingGone`, and the errors of reading the index."""
        limit = max(1, min(limit, PAGE_KEYS_MAX))
        if cursor is None:
            token, number = self._randomness.token().hex(), 1
            listing = Listing(token, name, partitions, self._view, limit)
        else:
            token, number = cursor
            begun = self._listings.get(token)
            if begun is None or begun.what != (name, partitions) or not begun.has(number):
                raise ListingGone(
                    f"page {number} of a listing of the keys of map {name!r} was requested; "
                    "this agent has no such listing, or can no longer return that page: "
                    "begin again"
                )
            listing = self._listings.pop(token)
        page = listing.page(number, limit)
        # Only after success: a listing with a failed page cannot continue.
        listing.owner = sender
        self._listings[token] = listing
        self._limit(sender)
        return page

    def forget(self, sender: bytes) -> None:
        """A connection has ended."""
        for listing in self._listings.values():
            if listing.owner == sender:
                listing.owner = NO_CONNECTION
        self._limit(NO_CONNECTION)

    def _limit(self, owner: bytes) -> None:
        """Drop the listings beyond the limits of this owner and of all."""
        own = [token for token, listing in self._listings.items() if listing.owner == owner]
        for token in own[: -(LISTINGS_MAX if owner else ABANDONED_MAX)]:
            del self._listings[token]
        while (
            len(self._listings) > 1
            and sum(listing.memory for listing in self._listings.values()) > LISTINGS_BYTES
        ):
            taken: Counter[bytes] = Counter()
            for listing in self._listings.values():
                taken[listing.owner] += listing.memory
            most = NO_CONNECTION if taken[NO_CONNECTION] else max(taken, key=taken.__getitem__)
            del self._listings[
                next(token for token, listing in self._listings.items() if listing.owner == most)
            ]


def _size(keys: list[bytes]) -> int:
    return sum(map(len, keys)) + KEY_BYTES * len(keys)
