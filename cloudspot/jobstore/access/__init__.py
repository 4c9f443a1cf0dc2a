"""Access to a store: its clock, retries, parallel requests, create-only puts, and disk space checks."""
