"""The machines that a job lacks, and the offer to buy; pure, except for reading other jobs' experience."""
