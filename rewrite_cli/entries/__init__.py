"""TODO rewrite_cli/entries."""
