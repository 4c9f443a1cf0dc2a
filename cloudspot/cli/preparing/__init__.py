"""Preparation of a submission: read the job file, look up inputs and image, and estimate the cost."""
