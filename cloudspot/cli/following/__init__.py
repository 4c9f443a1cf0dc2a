"""Follow a job: drive it, print its events and its log, and show the live panel below them."""
