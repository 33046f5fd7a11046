"""Classical algorithms."""
