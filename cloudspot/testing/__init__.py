"""Kits for plugin authors: the promises of each interface as tests, and isolated tests."""
