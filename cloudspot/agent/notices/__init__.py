"""The ways in which a node learns that it will lose its machine."""
