"""Services and what they need: agents, members, keys; `doctor`."""
