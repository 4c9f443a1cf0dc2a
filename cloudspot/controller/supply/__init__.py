"""The machines that a job lacks, and the offer to buy; pure, except that other jobs' experience is read."""
