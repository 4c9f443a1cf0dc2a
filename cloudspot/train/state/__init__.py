"""The state of a training, which is divided into boxes for a save and combined again."""
