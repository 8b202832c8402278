"""Examines a log without changing it: what it contains, and whether it is whole."""
