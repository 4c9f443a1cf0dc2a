"""The layout of the bucket: every key, the records under them, and their encoding."""
