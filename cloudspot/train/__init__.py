"""The training process's side of cloudspot: the standard library and torch, nothing else.

Importing this package does not import torch; ``session()`` does.
"""
