"""EventBridge Scheduler: moto keeps the schedules, and this module carries out those that end machines.

Source: EventBridge Scheduler user guide, "Schedule types", "Using universal targets", "Setting up the
execution role" and the API reference of CreateSchedule (checked 2026-11); the wording of refusals is from
memory.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any, Final

from moto.core import DEFAULT_ACCOUNT_ID
from moto.iam.models import iam_backends
from moto.scheduler.models import scheduler_backends

from cloudspot_aws_sandbox.query import ApiError

TARGET: Final = "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances"
RETRY_SECONDS: Final = 60.0
_AT: Final = re.compile(r"at\((\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2})\)")
_NAME: Final = re.compile(r"[0-9a-zA-Z\-_.]{1,64}")
_ROLE: Final = re.compile(r"arn:aws:iam::(\d{12}):role/([\w+=,.@-]+)")

_log = logging.getLogger(__name__)


class Schedules:
    """The schedules of one account. The caller holds the machines' lock."""

    def __init__(
        self, terminate: Callable[[Mapping[str, Any], str], object], clock: Callable[[], float]
    ) -> None:
        """``terminate`` carries out a TerminateInstances in a region, or raises ApiError."""
        self._terminate = terminate
        self._clock = clock
        self._not_before: dict[str, float] = {}
        """When each failed schedule is retried, by its ARN."""

    def check(self, path: str, request: Mapping[str, Any]) -> None:
        """Refuse a CreateSchedule that the real service refuses, or that is not emulated.

        Raises:
            ApiError: the call is refused, with the service's wording.
        """
        name, target = path.rpartition("/")[2], request.get("Target", {})
        if _NAME.fullmatch(name) is None:
            raise _wrong(f"Value '{name}' at 'name' failed to satisfy constraint")
        if request.get("FlexibleTimeWindow", {}).get("Mode") not in {"OFF", "FLEXIBLE"}:
            raise _wrong("FlexibleTimeWindow must not be null")
        if _due(request) is None:
            raise _wrong(f"Invalid Schedule Expression {request.get('ScheduleExpression')}.")
        if target.get("Arn") != TARGET:
            raise _wrong(f"the emulated Scheduler supports only {TARGET}")
        try:
            input_ = json.loads(target.get("Input", ""))
        except ValueError:
            input_ = None
        if not isinstance(input_, dict) or not input_.get("InstanceIds"):
            raise _wrong("Invalid request payload: InstanceIds is required")
        role = _ROLE.fullmatch(target.get("RoleArn", ""))
        trusted = {
            one.name
            for one in iam_backends[DEFAULT_ACCOUNT_ID]["aws"].roles.values()
            if "scheduler.amazonaws.com" in str(one.assume_role_policy_document)
        }
        if role is None or role[1] != DEFAULT_ACCOUNT_ID or role[2] not in trusted:
            raise _wrong(
                "The execution role you provide must allow AWS EventBridge Scheduler to assume the role."
            )

    def run_due(self, region: str) -> None:
        """Carry out the schedules that are due; a failed one is retried a minute later."""
        for group in scheduler_backends[DEFAULT_ACCOUNT_ID][region].schedule_groups.values():
            for schedule in list(group.schedules.values()):
                due = _due(schedule.to_dict())
                if due is None or max(due, self._not_before.get(schedule.arn, due)) > self._clock():
                    continue
                try:
                    self._terminate(json.loads(schedule.target["Input"]), region)
                except ApiError as error:
                    _log.warning("schedule %s failed: %s", schedule.name, error)
                    self._not_before[schedule.arn] = self._clock() + RETRY_SECONDS
                    continue
                _log.info("schedule %s: terminated %s", schedule.name, schedule.target["Input"])
                if schedule.action_after_completion == "DELETE":
                    group.delete_schedule(schedule.name)
                else:
                    schedule.state = "DISABLED"


def _due(schedule: Mapping[str, Any]) -> float | None:
    """Return when a schedule is due, in seconds since the epoch, or None if it is disabled or not in UTC."""
    match = _AT.fullmatch(str(schedule.get("ScheduleExpression")))
    if match is None or schedule.get("State") == "DISABLED":
        return None
    if schedule.get("ScheduleExpressionTimezone", "UTC") != "UTC":
        return None
    try:
        return datetime.fromisoformat(match[1]).replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None


def _wrong(message: str) -> ApiError:
    return ApiError("ValidationException", message)
