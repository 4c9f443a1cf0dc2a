"""Watch a running training, and ask it to save when the node must leave."""
