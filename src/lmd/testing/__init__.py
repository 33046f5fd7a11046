"""Conformance suites to inherit: terms, operators, mirrors, solvers."""
