"""The code bundle: which files belong to it, how it is made, and how it is extracted."""
