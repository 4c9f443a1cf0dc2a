"""The command line: one module per command, which is imported only when the command runs."""
