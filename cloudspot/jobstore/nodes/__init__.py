"""A job's nodes: their seats, their reports, and how long they are left alone."""
