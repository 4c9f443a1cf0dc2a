"""The code bundle: the choice of its files, its creation, and its extraction."""
