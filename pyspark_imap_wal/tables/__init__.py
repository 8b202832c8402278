"""The columns of each table."""
