"""The node's side: one process that fetches, restores, runs torchrun, uploads, and ends the machine."""
