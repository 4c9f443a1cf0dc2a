"""Reports from the records of a job: its state, bill, timeline and metrics; pure."""
