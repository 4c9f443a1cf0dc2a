"""Watch a running training, and ask it to save when it must."""
