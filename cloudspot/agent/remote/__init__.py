"""Commands that people run on this node, through the job's store."""
