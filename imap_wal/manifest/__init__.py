"""Manifests: numbered JSON files that list the parts of a log, and their compare-and-swap."""
