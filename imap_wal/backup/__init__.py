"""Copies of a log that are made while it is written, in a place of their own.

    capture    which files belong to one moment: manifests, claims, segments and how far they count;
               these files as a storage that can only be read
    catalogue  the backups of a place, as numbered JSON files, and their chunks
    run        captures, copies and checks the chunks that are not there yet, publishes, removes
               old backups
    age        when the last whole backup of a log ended
    restore    writes the files of a backup into an empty place
    unfinished a place that is being filled: none of its logs can be opened yet

See decision 50 in docs/decisions/storages.md.
"""
