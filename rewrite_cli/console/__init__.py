"""TODO rewrite_cli/console."""
