"""What makes a log smaller, or changes who may write it."""
