"""A page about a job or a store: its content, its pictures and its HTML."""
