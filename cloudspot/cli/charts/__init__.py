"""The charts of ``--plot``."""
