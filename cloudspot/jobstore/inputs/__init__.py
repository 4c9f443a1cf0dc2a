"""The inputs in a job's ``[data]``: list them, read them, and keep them on a machine's disk."""
