"""What tests of cloudspot and of its plugins stand on: stores that fail on purpose, and the like."""
