"""A job's log as the commands read, list, download and prune it."""
