"""Access to a store: its clock; requests repeated, in parallel or create only; and room for what comes."""
