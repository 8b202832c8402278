"""Secrets and encryption: files that have secrets, credentials of storages, keys, ciphers."""
