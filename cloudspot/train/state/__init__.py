"""The state of a training, which is taken apart into boxes for a save and put together again."""
