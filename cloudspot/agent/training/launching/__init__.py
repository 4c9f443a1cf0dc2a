"""Everything before a training runs: code, setup and inputs are made ready, and torchrun is started."""
