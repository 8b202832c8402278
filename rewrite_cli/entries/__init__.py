"""Live entries of a log for export and copies."""
