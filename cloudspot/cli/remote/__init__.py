"""What the commands share that run something on a job's nodes."""
