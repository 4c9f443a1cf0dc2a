"""The journal, and what it and the other records of a job add up to."""
