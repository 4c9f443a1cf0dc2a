"""Where and with which Python the job's programs run: on the machine itself, or in a container."""
