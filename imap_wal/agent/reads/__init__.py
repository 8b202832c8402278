"""Reads of an agent's clients: keys, listings, load, maps, schemas."""
