"""A Hazelcast client needs no change: after a restart of the cluster, the map is restored.

1. In another terminal:   imap-wal node start --members 2 --url /tmp/imap-wal-example-cluster
2. Run this program:      python examples/hazelcast_client.py
3. Kill the cluster, start it again with the same --url, and run this program again.
"""

import sys

import hazelcast

client = hazelcast.HazelcastClient(cluster_members=sys.argv[1:] or ["127.0.0.1:5701"])
orders = client.get_map("orders").blocking()
print(f"{orders.size()} orders from before")
orders.set(f"order {orders.size() + 1}", "new")
print(f"{orders.size()} orders now")
client.shutdown()
