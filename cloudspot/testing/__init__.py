"""Kits for plugin authors: the promises of stores and sinks as tests, and isolated tests."""
