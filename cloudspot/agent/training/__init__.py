"""One torchrun of this node: prepared, started, supervised and ended."""
