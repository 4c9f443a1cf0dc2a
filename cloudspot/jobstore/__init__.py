"""A job's data in the bucket, which is the only database: keys, records, and the state computed from them.

A function that makes requests to the store raises TransientError when the store does not answer: the outcome
is unknown, and it is safe to call again with the same arguments. A function that reads a record raises
CorruptData when it is malformed; the message names its key.
"""
