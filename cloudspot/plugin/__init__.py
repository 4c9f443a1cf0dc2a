"""What provider plugins build on: bucket stores, checks, metadata clients. It names no cloud."""
