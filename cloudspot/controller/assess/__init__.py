"""The state of a job as a controller knows it: observations, memory, and conclusions from these."""
