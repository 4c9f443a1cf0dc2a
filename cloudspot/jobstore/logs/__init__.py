"""A training's output besides its checkpoints: log lines and artifacts."""
