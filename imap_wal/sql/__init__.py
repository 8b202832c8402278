"""Values of maps as columns with types of SQL."""
