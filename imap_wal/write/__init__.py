"""How a change becomes durable: ring, committer, a node's log, recovery at open, maintenance."""
