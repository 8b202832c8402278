"""Manifests: numbered JSON files that say what a log consists of, and their compare-and-swap."""
