"""How a machine comes from a bare boot to a running agent."""
