"""The state of a training: taken apart into boxes for a save, and put together again."""
