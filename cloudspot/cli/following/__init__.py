"""Following a job: drives it, prints its events and log, and keeps the live panel below them."""
