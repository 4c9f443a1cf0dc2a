"""cloudspot: one job file and one DDP training script on any cloud's spot machines."""

__version__ = "0.1.0"
