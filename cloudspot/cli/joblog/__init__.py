"""A job's log: how commands read, list, download and prune it."""
