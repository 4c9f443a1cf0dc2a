"""The ways by which a node learns that its machine goes."""
