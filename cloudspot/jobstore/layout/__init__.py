"""How the bucket is laid out: every key, the records under them, and their bytes."""
