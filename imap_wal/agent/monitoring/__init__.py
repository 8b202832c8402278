"""Metrics and health of an agent over HTTP: a snapshot, its metrics, and the listener."""
