"""The node's process: it fetches, restores, runs the training, uploads, and ends the machine.

A function that uses the store raises TransientError during an outage; ``NodeContext.retry_until`` retries it.
"""
