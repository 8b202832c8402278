"""TODO rewrite_cli/local_cluster."""
