"""A dict that survives `kill -9`.   python examples/embedded.py [URL]"""

import sys

import imap_wal

url = sys.argv[1] if len(sys.argv) > 1 else "file:///tmp/imap-wal-example"

with imap_wal.open(url, node="example") as store:
    visits = store.map("visits")
    visits["total"] = visits.get("total", 0) + 1
    visits.put("last hour", visits.get("last hour", 0) + 1, ttl=3600)
    print(f"visit {visits['total']}, {visits['last hour']} in this hour; kill it at any time")
