"""The status page of an agent, for people: what it shows, its HTML, and its events."""
