"""Copies of a log that are made while it is written, in a place of their own.

    capture    which files belong to one moment: manifests, claims, segments and how far they count
    catalogue  the backups of a place, as numbered JSON files, and their chunks
    checks     finds damage of the log while its files are copied
    run        captures, copies the chunks that are not there yet, publishes, removes old backups
    view       the files of one moment as a storage that can only be read
    restore    writes the files of a backup into an empty place
    unfinished a place that is being filled: none of its logs can be opened yet

See docs/decisions/0050-backups-by-content.md.
"""
