"""Manifests: numbered JSON files that say what a log consists of, and how processes agree on
them."""
