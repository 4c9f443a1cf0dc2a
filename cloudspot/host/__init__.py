"""This host: safe names, files that appear whole, private directories, and processes found below their keeper."""
