"""Whole jobs: submit, list, read, resume, fork, copy and remove them; and the drivers of a store's jobs."""
