"""Where users already are: the solvers here in the shapes of other packages, each of which stays optional."""
