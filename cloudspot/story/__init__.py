"""What the records of a job tell: its state, its bill, its timeline and its metrics; pure."""
