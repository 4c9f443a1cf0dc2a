"""Helpers for the commands that run programs on a job's nodes."""
