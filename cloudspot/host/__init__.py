"""This host: safe names, atomic files, private directories, and the processes of a program."""
