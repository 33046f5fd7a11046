"""What every room uses and knows nothing of optimisation: checks, configuration, files, batching."""
