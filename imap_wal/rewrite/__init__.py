"""Rewrites a log into snapshots: plan, local engine, publication; and pruning and dropping maps."""
