"""What commands print: styles, tables, lines, figures for people and JSON for programs."""
