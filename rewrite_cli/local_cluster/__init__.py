"""Members and agents on this machine, for `node start`, demos and tests."""
