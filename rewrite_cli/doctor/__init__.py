"""The checks of `doctor`. Each is a function that yields `Check`s; a failed one has advice."""
