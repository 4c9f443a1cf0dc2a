"""The job in the bucket: every key, record and fold; the bucket is the only database.

Whatever asks the store raises TransientError when the store does not answer: the outcome is unknown, and it
is safe to call again with the same arguments. Whatever reads a record raises CorruptData when it is
malformed; the message names its key.
"""
