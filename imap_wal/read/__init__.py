"""Reading a log: file by file, node by node, all nodes of a cluster, and the newest change of each
key."""
