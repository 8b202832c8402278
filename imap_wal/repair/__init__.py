"""Writing a repaired copy of a damaged log."""
