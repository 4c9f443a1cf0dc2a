"""The base of the sandboxes: a cloud emulated on one host, with machines that really boot."""
