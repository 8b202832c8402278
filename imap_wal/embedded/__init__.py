"""The durable map of one process."""
