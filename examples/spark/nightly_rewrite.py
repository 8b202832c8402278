"""Rewrite all logs under a root on Spark, then remove what the snapshots cover.

spark-submit nightly_rewrite.py s3://bucket/maps
"""

import sys
from importlib.metadata import entry_points

(program,) = entry_points(group="console_scripts", name="imap-wal")
main = program.load()
url = sys.argv[1]
for command in (["rewrite", url, "--engine", "spark"], ["prune", url, "--yes"]):
    sys.argv = ["imap-wal", *command]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise
