"""One module per command, in a folder for each topic; each has a `command`."""
