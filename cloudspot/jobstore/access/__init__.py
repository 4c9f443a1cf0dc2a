"""Access to a store: its clock, retries, parallel requests, create-only puts, and checks of disk space."""
