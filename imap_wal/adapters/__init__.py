"""Durable maps with the interfaces of other libraries. The modules use only public methods of maps.
Each except `memoize` needs an extra of imap-wal, which its error names."""
