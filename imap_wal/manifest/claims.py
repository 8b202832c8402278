"""Which Hazelcast cluster, and which of its members, may write: a manifest of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from imap_wal.context import Context
from imap_wal.errors import TooLarge
from imap_wal.manifest.store import (
    FORMAT,
    ManifestLog,
    Whole,
    checked,
    document_of,
    require,
)

MEMBERS_MAX = 1000
"""The most members of a view, and the most that are kept out of it."""


CLAIMS_KEPT = 1000
"""The number of replaced clusters that are remembered."""


CLOSED_ADVICE = (
    "decide who may: imap-wal claim --only-token FILE, or --forget-tokens for every client"
)
"""Advice for closed claims."""


@dataclass(frozen=True, slots=True)
class ClaimManifest:
    """Which Hazelcast cluster may write. This is checked between every sync and acknowledgement, so
    it is a separate, small manifest. `claims`: cluster id → its claimed incarnation. After a newer
    claim, agents acknowledge nothing for an older one. Only then are the cutoffs read and the
    lifetime published, so no acknowledged change is above a cutoff.

    The newest claim may be a view: then only `members` may write in it. The list is always
    complete: a later member is entered before its first change."""

    format: ClassVar[int] = FORMAT
    needed: ClassVar[tuple[str, ...]] = ("claims",)
    """The fields that every manifest has; the others, if they do not have their defaults."""

    claims: Mapping[str, Whole] = field(default_factory=dict)
    members: tuple[str, ...] = ()
    """UUIDs of the Hazelcast members of the newest claim; (): any member of its cluster."""
    lost: tuple[str, ...] = ()
    """UUIDs of members that were lost before the newest claim, or before their first hello. They
    may not write in it."""
    forced: bool = False
    """The newest claim is an operator's (`imap-wal claim --force`). The next cluster does not wait
    for nodes."""
    tokens: tuple[str, ...] = ()
    """SHA-256 of each token of this cluster. Agents claim only for clients with one of them; ():
    for all clients that may connect."""
    closed: bool = False
    """A repair found that claims were lost, perhaps with a token: agents claim for no cluster until
    an operator decides (`imap-wal claim`)."""

    @property
    def newest(self) -> int:
        """The last claimed incarnation; 0 without a claim."""
        return max(self.claims.values(), default=0)

    @property
    def cluster_id(self) -> str:
        """The cluster of the newest claim; "" without a claim."""
        return max(self.claims, key=lambda claim: self.claims[claim], default="")

    def with_claim(
        self,
        cluster_id: str,
        incarnation: int,
        members: tuple[str, ...] = (),
        lost: tuple[str, ...] = (),
    ) -> ClaimManifest:
        newest = sorted(
            {**self.claims, cluster_id: incarnation}.items(), key=lambda claim: claim[1]
        )[-CLAIMS_KEPT:]
        return ClaimManifest(
            dict(newest),
            members,
            lost,
            tokens=self.tokens,
            closed=self.closed,
        )

    def admits(self, member: str, view: int) -> bool:
        """Whether this member of the newest claim's cluster may write, if its hello names this
        view."""
        return (
            not self.members
            or member in self.members
            or (view == self.newest and member not in self.lost)
        )

    def with_member(self, member: str) -> ClaimManifest:
        """The manifest with this member in the list. Raises `TooLarge` if the list is full."""
        if not self.members or member in self.members:
            return self
        if len(self.members) >= MEMBERS_MAX:
            raise TooLarge(
                f"view {self.newest} already has {len(self.members)} members, the most that are "
                f"possible, and member {member} is not one of them"
            )
        return replace(self, members=(*self.members, member))

    def barring(self, lost: Collection[str]) -> ClaimManifest | None:
        """The manifest with more lost members, none of which is in the list. None if they are too
        many: then another view follows, whose number they do not know."""
        all_lost = {*self.lost, *lost}
        return replace(self, lost=tuple(sorted(all_lost))) if len(all_lost) <= MEMBERS_MAX else None

    @property
    def names_token(self) -> bool:
        """Whether it is known who may claim, if the cluster has a token."""
        return bool(self.tokens) or self.closed

    def to_json(self) -> dict[str, Any]:
        return document_of(self, self.needed)

    @classmethod
    def from_json(cls, data: dict[str, Any], file: str = "") -> Self:
        require(data, *cls.needed)
        return checked(data, cls)


def claim_manifests(context: Context, cluster_folder: str) -> ManifestLog[ClaimManifest]:
    return ManifestLog(
        context.store,
        f"{cluster_folder}/claims",
        ClaimManifest,
        ClaimManifest(),
        context.clock,
        context.randomness,
    )
