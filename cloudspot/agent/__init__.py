"""The node's side: one process that fetches, restores, runs the training, uploads, and ends the machine.

Whatever asks the store raises TransientError when it does not answer; ``NodeContext.retry_until`` repeats it.
"""
