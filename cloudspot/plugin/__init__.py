"""The base of provider plugins: providers, options, requests, errors, bucket stores. It names no cloud."""
