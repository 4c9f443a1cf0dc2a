"""Weights & Biases: a run's id is the job's, so each start of the training resumes it."""

from __future__ import annotations

from collections.abc import Mapping

from cloudspot.calls import TrackingRequest
from cloudspot.interfaces import Tracker


class WandbTracker(Tracker):
    """Names each rank's run after the job, and lets ``wandb.init`` resume it.

    A run exists only if the script calls ``wandb.init``: one for the job if only rank 0 does so, else one for
    each rank that does so, in a group with the job's name.

    Source: the environment variables that wandb documents, and ``wandb.sdk.wandb_settings.Settings``, whose
        run ids may not contain ``:;,#?/'`` (wandb 0.31.0, checked 2026-11). A job's id is a DNS label.
    """

    name = "wandb"

    def variables(self, request: TrackingRequest) -> Mapping[int, Mapping[str, str]]:
        """Return each rank's run, which is made at its first ``wandb.init`` and resumed at later ones."""
        return {
            rank: {
                "WANDB_RUN_ID": run_id(request.job_id, rank),
                "WANDB_RESUME": "allow",
                "WANDB_RUN_GROUP": request.job_id,
            }
            for rank in request.ranks
        }


def run_id(job_id: str, rank: int) -> str:
    """Return the id of a rank's run; that of rank 0 is the job's id."""
    return job_id if rank == 0 else f"{job_id}-rank{rank}"
