"""How the nodes of a launch agree on who trains next, and from which checkpoint (P3)."""
