"""How all ranks come to save at the same step, and who asks for it when (P4)."""
