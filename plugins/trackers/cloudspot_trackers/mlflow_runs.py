"""MLflow: a run is found again by the tags that it gets when the script starts it."""

from __future__ import annotations

import json
from collections.abc import Mapping

from cloudspot.calls import TrackingRequest
from cloudspot.errors import CloudspotError
from cloudspot.interfaces import Tracker

JOB_TAG = "cloudspot.job"
RANK_TAG = "cloudspot.rank"
SEARCH_SECONDS = 180.0
"""How long a start of the training waits for the tracking server."""
_SEARCH = """
import json, os
os.environ.pop("MLFLOW_RUN_ID", None)
import mlflow
where = "tags.`{job_tag}` = '{job_id}'"
runs = mlflow.search_runs(
    filter_string=where, search_all_experiments=True, output_format="list", order_by=["start_time DESC"]
)
# A nested run has its parent's tags. Of several runs of a rank the oldest stands, as it comes last.
found = {{
    run.data.tags["{rank_tag}"]: run.info.run_id
    for run in runs
    if "mlflow.parentRunId" not in run.data.tags and "{rank_tag}" in run.data.tags
}}
print("\\n" + json.dumps(found))
"""


class MlflowTracker(Tracker):
    """Makes a rank's first ``mlflow.start_run`` resume the run that an earlier start of the training made.

    MLflow chooses the ids of runs, so a run gets the job and the rank as tags (``MLFLOW_RUN_CONTEXT``);
    before each later start, the run is found by these tags, and its rank gets its id (``MLFLOW_RUN_ID``). The
    job file must name the server in ``MLFLOW_TRACKING_URI``.

    Source: ``mlflow.start_run``, ``mlflow.environment_variables``, and
    ``mlflow.tracking.context.system_environment_context`` (mlflow 3.17.2, checked 2026-11).
    """

    name = "mlflow"

    def variables(self, request: TrackingRequest) -> Mapping[int, Mapping[str, str]]:
        """Return the tags of each rank's run, and its id if the run already exists."""
        if "MLFLOW_TRACKING_URI" not in request.environment:
            raise CloudspotError(
                "run.env has no MLFLOW_TRACKING_URI, so the next machine cannot find the run"
            )
        tags = {rank: {JOB_TAG: request.job_id, RANK_TAG: str(rank)} for rank in request.ranks}
        known: dict[str, str] = {}
        if request.generation > 1:
            code = _SEARCH.format(job_id=request.job_id, job_tag=JOB_TAG, rank_tag=RANK_TAG)
            printed = request.run_python(code, SEARCH_SECONDS)
            try:
                known = dict(json.loads(printed.rstrip().rpartition("\n")[2]))
            except ValueError:
                raise CloudspotError("MLflow's answer cannot be read") from None
        found: dict[int, Mapping[str, str]] = {}
        for rank in request.ranks:
            run = {"MLFLOW_RUN_ID": known[str(rank)]} if str(rank) in known else {}
            found[rank] = {"MLFLOW_RUN_CONTEXT": json.dumps(tags[rank]), **run}
        return found
