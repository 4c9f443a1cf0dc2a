"""Prepare, start, supervise and end each start of the training on this node."""
