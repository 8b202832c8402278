"""What is read key by key: the changes of maps with the images before and after each of them
(`option("changes", "images")`), and the history of keys.

    known    which files have the state of the maps at the positions where a read starts
    bases    what a registered stream keeps of them, beside rewrites and prunes
    images   a task: its entries ─▶ `sorter` ─▶ key by key ─▶ `chain` ─▶ record batches
    sorter   any number of entries by map, key and order, in bounded memory
    chain    one key: what the map had before a change, and after it
    batch    `spark.read`; a stream is in `pyspark_imap_wal.stream`
    history  the table `history`: all versions of each key, sorted in the same way

See docs/decisions/spark.md.
"""
