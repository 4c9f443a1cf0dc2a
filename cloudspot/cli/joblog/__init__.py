"""A job's log, as commands read, list, download and prune it."""
