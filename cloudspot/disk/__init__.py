"""What is written to this machine's disk: safe names, files that appear whole, private directories."""
