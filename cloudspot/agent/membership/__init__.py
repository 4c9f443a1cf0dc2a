"""Agree with the other nodes on the next generation and its checkpoint (P3)."""
