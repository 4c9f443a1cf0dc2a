"""The nodes of a job: their seats, what they report, and how long they are left alone."""
