"""Secrets and encryption: files with secrets, credentials of storages, keys, ciphers."""
