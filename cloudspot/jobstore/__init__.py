"""A job's data in the bucket, which is the only database: keys, records, and the state computed from them.

A function that makes requests to the store raises TransientError if the store does not answer: the outcome is
then unknown, and the same call is safe to repeat. A function that reads a record raises CorruptData if the
record is malformed; the message names its key.
"""
