"""Run the job's programs with its Python, on the machine itself or in a container."""
