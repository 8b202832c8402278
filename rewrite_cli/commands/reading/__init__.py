"""What is in a log; changes nothing."""
