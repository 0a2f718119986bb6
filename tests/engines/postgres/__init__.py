"""What only the PostgreSQL engine promises."""
