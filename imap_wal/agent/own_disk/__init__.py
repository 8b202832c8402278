"""An agent whose segments are on its node's own disk (`wal_dir_is_local`).

    uploads   copies sealed segments to the root, which all machines see
    serving   answers other agents that read the rest, its tail, from this disk
    tails     reads the tails of other nodes

`imap_wal.placement.router` makes one store of them. See decision 55 in docs/decisions/storages.md.
"""
