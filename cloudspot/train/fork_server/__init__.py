"""The fork server, a process that has imported torch, and the client that stands in for its programs."""
