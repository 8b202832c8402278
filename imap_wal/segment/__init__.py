"""The segment files of a node's log: their bytes, writing, reading, and what is wrong with one."""
