"""Durable maps behind the interfaces of other libraries: small modules on the public methods of a
map. Each but `memoize` needs an extra of imap-wal, which its error names."""
