"""The claims of a repaired copy."""

from __future__ import annotations

from dataclasses import dataclass, replace

from imap_wal.inspect import older_manifests
from imap_wal.manifest.claims import CLOSED_ADVICE, ClaimManifest
from imap_wal.read.state import ClusterState
from imap_wal.repair.report import COPIED, REWRITTEN, Extent, Item

OF_NO_CLUSTER = "imap-wal repair"
"""A cluster id that no cluster has."""


@dataclass(frozen=True, slots=True)
class ClaimsRepair:
    """`lost`: how many of the newest manifests of claims cannot be read. `is_older`: the cluster's
    manifest in use is older than the files next to it."""

    view: ClusterState
    lost: int
    is_older: bool

    @property
    def number(self) -> int:
        """The number of the copy's manifest of claims."""
        return self.view.claims_number + self.lost + 1

    def plan(self, incarnation: int) -> tuple[ClaimManifest | None, Item | None]:
        """The copy's claims, if newer ones may be lost. After the newest readable claim, another
        cluster may have claimed the log. So the copy gets a claim of the last incarnation for no
        cluster, and every cluster that returns must be restarted. The lost manifest may also have
        had a token: unless it is known that it had none, no cluster can claim the copy until an
        operator decides. Returns None for the claims if the newest readable ones are copied, and
        what to say about them."""
        view, older = self.view, older_manifests.of_claims(self.view)
        name = f"{view.claims_folder}/{view.claims_number:010d}.json"
        if not self.lost and not older:
            return None, Item(name, "manifest", "clean", COPIED) if view.claims_number else None
        closed = (
            view.claims.closed or view.manifest.token or bool(view.claims.tokens) or self.is_older
        )
        claims = view.claims.with_claim(OF_NO_CLUSTER, incarnation)
        reason = f"it is older than the manifest of the cluster ({older})"
        if self.lost:
            name = f"{view.claims_folder}/{view.claims_number + self.lost:010d}.json"
            reason = (
                f"the newest manifest of claims cannot be read; number {view.claims_number} is "
                "used in its place"
            )
        reason += "; Hazelcast clusters must be restarted to use the copy"
        if closed:
            reason += (
                ". With them a token of this cluster may be lost, so no cluster can claim the "
                f"copy before you {CLOSED_ADVICE}"
            )
        to = f"{view.claims_folder}/{self.number:010d}.json"
        return replace(claims, closed=closed), Item(
            name, "manifest", "corrupt", REWRITTEN, given_up=Extent(), what=reason, to=to
        )
