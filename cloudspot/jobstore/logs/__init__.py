"""The files that a training leaves beside its checkpoints: log lines and artifacts."""
