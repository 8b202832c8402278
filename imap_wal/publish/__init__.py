"""Snapshots as tables that other programs read, without a copy of the files."""
