"""Decide what follows the end of the training: another start, or the node's exit record."""
