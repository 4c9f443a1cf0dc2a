"""What provider plugins build on: checks, metadata clients, multipart uploads. It names no cloud."""
