"""The segment files of a node's log: bytes, writing, reading, and the verdict on a damaged one."""
