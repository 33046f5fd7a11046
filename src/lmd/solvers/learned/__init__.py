"""Solvers with learned parts."""
