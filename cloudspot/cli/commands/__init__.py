"""The commands of ``cloudspot``, one module each; main.py imports a module when its command runs."""
