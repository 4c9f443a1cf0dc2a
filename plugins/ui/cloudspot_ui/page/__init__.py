"""A page about a job or a store: what it tells, its pictures and its HTML."""
