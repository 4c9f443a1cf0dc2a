"""The inputs of a job's ``[data]``: listed, read, and kept on a machine's disk."""
