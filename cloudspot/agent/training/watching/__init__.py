"""A training is watched while it runs, and told when it has to save."""
