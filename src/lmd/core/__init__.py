"""Utilities that all parts of lmd use, without any optimisation: checks, configuration, files, batching."""
