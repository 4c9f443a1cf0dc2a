"""The pictures of ``--plot``."""
