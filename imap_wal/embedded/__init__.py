"""Durable maps in one process."""
