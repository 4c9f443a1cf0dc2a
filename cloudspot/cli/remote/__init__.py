"""Helpers of the commands that run something on a job's nodes."""
