"""One start of the training on this node: prepared, started, supervised and ended."""
