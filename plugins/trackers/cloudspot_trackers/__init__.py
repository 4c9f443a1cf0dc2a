"""cloudspot's trackers: Weights & Biases, MLflow and TensorBoard.

Importing the package imports none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudspot.hookspecs import hookimpl

if TYPE_CHECKING:
    from cloudspot.interfaces import Tracker

cloudspot_api_version = 2


@hookimpl
def cloudspot_tracker(name: str) -> type[Tracker] | None:
    """Return the named tracker."""
    from cloudspot_trackers import mlflow_runs, tensorboard_runs, wandb_runs

    found: dict[str, type[Tracker]] = {
        one.name: one
        for one in (mlflow_runs.MlflowTracker, tensorboard_runs.TensorBoardTracker, wandb_runs.WandbTracker)
    }
    return found.get(name)
