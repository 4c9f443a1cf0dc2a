"""This host: safe names, files that appear whole, private directories, and the processes of a program."""
