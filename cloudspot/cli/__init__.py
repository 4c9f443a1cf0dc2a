"""The command line: one file a command; a command's module is imported when that command runs."""
