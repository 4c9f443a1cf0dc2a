"""The nodes of a job: their seats, their reports, and how long they are left alone."""
