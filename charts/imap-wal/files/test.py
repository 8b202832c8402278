"""`helm test`: each agent is ready, and a member takes, returns and deletes an entry."""

import os
import sys
import urllib.request

import hazelcast

service, cluster = os.environ["SERVICE"], os.environ["CLUSTER"]
for host in os.environ["AGENTS"].split(","):
    with urllib.request.urlopen(f"http://{host}/readyz", timeout=10) as answer:
        print(f"{host}: {answer.status}")

client = hazelcast.HazelcastClient(
    cluster_name=cluster, cluster_members=[service], cluster_connect_timeout=60
)
orders = client.get_map("imap-wal-helm-test").blocking()
key = os.urandom(8).hex()
orders.set(key, "paid")
found = orders.get(key)
orders.delete(key)
members = len(client.cluster_service.get_members())
client.shutdown()
print(f"{members} members; the entry was {'found' if found == 'paid' else 'lost'}")
sys.exit(found != "paid" or members != int(os.environ["MEMBERS"]))
