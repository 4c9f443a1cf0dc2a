"""What is expected of a job before anything is bought; pure, but for reading earlier jobs."""
