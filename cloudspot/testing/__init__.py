"""Kits for plugin authors: the promises of stores and sinks as tests, a store that fails, isolated tests."""
