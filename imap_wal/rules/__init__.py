"""The rules that every writer, reader and rewrite of a log shares. Each module has one rule: first
for rows, then for columns of Arrow.

    valid      which entries may be written
    counts     which entries of a file count: low-water marks, cutoffs, owners that were replaced
    newer      which of two changes of a key is newer, and what happens when two nodes claim one
    decided    which claims of a key in conflict an operator has decided against
    cleared    which changes a clear deletes
    alive      whether the newest change of a key is in the map
    dropped    which newest changes a rewrite drops

`tests/unit/test_rules.py` compares rows and columns. Nothing here reads storage. See
decision 84 in docs/decisions/order.md.
"""
