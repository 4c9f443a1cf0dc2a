"""How all ranks agree to save at the same step, and which rank requests a save (P4)."""
