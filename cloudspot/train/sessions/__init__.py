"""The session: the loop of one training, opened, resumed, saved and left."""
