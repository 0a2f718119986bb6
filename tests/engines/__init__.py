"""What one engine does beyond the contract; each has a folder."""
