"""Services and their surroundings: agents, members, keys, and a first look."""
