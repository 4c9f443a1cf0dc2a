"""The boot script and the archives with which a machine gets from a bare boot to a running agent."""
