"""Checkpoints in the bucket: uploaded in parts, committed, verified, fetched, exported and deleted."""
