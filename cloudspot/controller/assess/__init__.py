"""What is known of a job: what a controller sees and remembers, and what that comes to."""
