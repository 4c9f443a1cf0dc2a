"""The session: the loop of one training, which is opened, resumed, saved and left."""
