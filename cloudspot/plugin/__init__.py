"""What provider plugins build on: providers, options, requests, errors, bucket stores. It names no cloud."""
