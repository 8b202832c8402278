"""The columns of each table, and the tables about a log beside that of its entries."""
