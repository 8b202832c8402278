"""Makes a log smaller automatically: archives, and the removal of covered files."""
