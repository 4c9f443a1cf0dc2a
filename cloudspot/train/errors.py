"""The errors that training scripts can encounter."""

from __future__ import annotations


class TrainError(Exception):
    """Base class of the errors below; the message states what was found and what to do."""


class SessionError(TrainError):
    """The session is used in a way that cannot work, or tracks state that cannot be saved: fix the script."""


class CheckpointError(TrainError):
    """The checkpoint is malformed, or does not fit the objects that this session tracks."""
