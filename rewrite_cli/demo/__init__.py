"""TODO rewrite_cli/demo."""
