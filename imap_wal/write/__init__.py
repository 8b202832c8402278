"""Making changes durable: ring, committer, a node's log, recovery at open, maintenance."""
