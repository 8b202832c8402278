"""Rewriting a log into snapshots: the plan, the engine of one machine, publishing, pruning,
dropping a map."""
