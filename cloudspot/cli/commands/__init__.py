"""The commands of ``cloudspot``, a module each; main.py imports one when it runs."""
