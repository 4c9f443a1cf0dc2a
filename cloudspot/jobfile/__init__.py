"""The job file: its fields as typed values, its schema, and errors in the user's own terms."""
