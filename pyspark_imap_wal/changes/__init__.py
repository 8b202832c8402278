"""What is read key by key: the changes of maps with the images before and after each of them
(`option("changes", "images")`), and the history of keys.

    known    which files have the state of the maps at the positions where a read starts
    images   a task: its entries ─▶ `sorter` ─▶ one key at a time: what the map had before a change,
             and after it ─▶ record batches
    sorter   any number of entries by map, key and order, in bounded memory
    batch    `spark.read`; a stream is in `pyspark_imap_wal.stream`
    history  the table `history`: all versions of each key, sorted in the same way

See docs/decisions/spark.md.
"""
