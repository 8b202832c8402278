"""A Hazelcast client notices nothing but that the map comes back.

imap-wal node start --members 2          in another terminal; kill it, start it with the same --url,
run this again python examples/hazelcast_client.py
"""

import sys

import hazelcast

client = hazelcast.HazelcastClient(cluster_members=sys.argv[1:] or ["127.0.0.1:5701"])
orders = client.get_map("orders").blocking()
print(f"{orders.size()} orders from before")
orders.set(f"order {orders.size() + 1}", "new")
print(f"{orders.size()} orders now")
client.shutdown()
