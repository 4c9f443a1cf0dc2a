"""Decide what follows the end of a training: another start, or the node's exit record."""
