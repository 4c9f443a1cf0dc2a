"""The errors that a training script can meet."""

from __future__ import annotations


class TrainError(Exception):
    """Base of the errors below; the message says what was found and what to do."""


class SessionError(TrainError):
    """The session is used in a way that cannot work, or tracks state that it cannot save: fix the script."""


class CheckpointError(TrainError):
    """The checkpoint is malformed, or does not fit the objects that this session tracks."""
