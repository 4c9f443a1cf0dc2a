"""How all ranks agree to save at the same step, and which rank asks for a save (P4)."""
