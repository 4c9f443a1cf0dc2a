"""The fork server, a process that has imported torch, and the client that runs in place of its programs."""
