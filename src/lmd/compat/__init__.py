"""Adapters for other packages, all of them optional."""
