"""Looking at a log without changing it: what is there, and whether it is whole."""
