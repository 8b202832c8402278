"""The newest change of each key: which one that is, and the index that has them, in memory and on
disk."""
