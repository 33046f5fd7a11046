"""Optional adapters for other packages."""
