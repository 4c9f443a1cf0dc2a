"""The boot script and the archives that take a machine from a bare boot to a running agent."""
