"""Where the files of a log are: all in one storage, or its segments at another place.

router     several stores as one; segments at one place for all nodes (`wal_dir`)
own_disk   each node's segments on its own disk (`wal_dir_is_local`)
record     the file in the root that says which
opening    open_place(url), open_store(url)
"""

from imap_wal.placement.opening import Placed, open_place, open_store

__all__ = ["Placed", "open_place", "open_store"]
