"""The job in the bucket: every key, record and fold; the bucket is the only database."""
