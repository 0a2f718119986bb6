"""What only the SQLite engine does."""
