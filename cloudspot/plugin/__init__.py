"""What provider plugins build on: bucket stores, log delivery, checks, metadata. It names no cloud."""
