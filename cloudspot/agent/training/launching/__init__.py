"""Prepare the code, the setup and the inputs, and start torchrun."""
