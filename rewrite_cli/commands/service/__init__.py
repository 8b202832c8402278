"""Services and what they need: agents, members, keys; the demo and `doctor`."""
