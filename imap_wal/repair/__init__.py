"""Writes a repaired copy of a damaged log."""
