"""Commands that people run on a job's nodes, relayed through the job's store, without a port or a key."""
