"""For the user's shell."""
