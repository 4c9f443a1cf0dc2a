"""The commands of this distribution."""
