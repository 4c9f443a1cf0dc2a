"""The output of commands: styles, tables, lines, figures for people, and JSON for programs."""
