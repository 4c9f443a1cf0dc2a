"""The part of AWS's Fault Injection Service that interrupts spot machines, with its refusals.

Source: botocore's model of the service for the requests; a template of AWS's own
(github.com/awslabs/ec2-spot-workshops, workshops/fis; checked 2026-11) for their contents. The rest is from
memory of the FIS user guide.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any, Final

from moto.core import DEFAULT_ACCOUNT_ID
from moto.iam.models import iam_backends

from cloudspot_aws_sandbox.machines import Machines
from cloudspot_aws_sandbox.query import ApiError

ACTION: Final = "aws:ec2:send-spot-instance-interruptions"
MAX_TARGETS: Final = 5
"""The maximum number of spot machines that one action interrupts."""
_DURATION: Final = re.compile(r"PT(\d+)M")
_ROLE: Final = re.compile(r"arn:aws:iam::(\d{12}):role/([\w+=,.@-]+)")


def action_of(method: str, path: str) -> str:
    """Return the call's name, or "" if the call is for another service."""
    parts = path.strip("/").split("/")
    names = {
        ("POST", "experimentTemplates", 1): "CreateExperimentTemplate",
        ("DELETE", "experimentTemplates", 2): "DeleteExperimentTemplate",
        ("POST", "experiments", 1): "StartExperiment",
    }
    return names.get((method, parts[0], len(parts)), "")


class Experiments:
    """The templates of one account, and the experiments that they start."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self.templates: dict[str, dict[str, Any]] = {}

    def answer(self, action: str, path: str, request: Mapping[str, Any], region: str) -> dict[str, Any]:
        """Carry out a call.

        Raises:
            ApiError: the call is refused, with the service's wording.
        """
        if action == "CreateExperimentTemplate":
            return self._create(dict(request), region)
        template_id = (
            path.rpartition("/")[2]
            if action == "DeleteExperimentTemplate"
            else str(request["experimentTemplateId"])
        )
        template = self.templates.get(template_id)
        if template is None:
            raise ApiError("ResourceNotFoundException", f"Template {template_id} does not exist.", status=404)
        if action == "DeleteExperimentTemplate":
            del self.templates[template_id]
            return {"experimentTemplate": template}
        self._interrupt(template)
        return {
            "experiment": {
                "id": f"EXP{secrets.token_hex(8)}",
                "experimentTemplateId": template_id,
                "state": {"status": "initiating"},
            }
        }

    def _create(self, request: dict[str, Any], region: str) -> dict[str, Any]:
        (action,) = request["actions"].values()
        (name,) = action.get("targets", {}).values()
        target = request["targets"].get(name)
        duration = _DURATION.fullmatch(action.get("parameters", {}).get("durationBeforeInterruption", ""))
        if action["actionId"] != ACTION or list(action["targets"]) != ["SpotInstances"] or target is None:
            raise _wrong(f"the emulated FIS supports only {ACTION} with its target SpotInstances")
        if target.get("resourceType") != "aws:ec2:spot-instance" or target.get("selectionMode") != "ALL":
            raise _wrong("the target must be of type aws:ec2:spot-instance, selected by ALL")
        if duration is None or not 2 <= int(duration[1]) <= 15:  # minutes
            raise _wrong("durationBeforeInterruption must be from PT2M to PT15M")
        prefix = f"arn:aws:ec2:{region}:{DEFAULT_ACCOUNT_ID}:instance/"
        arns = target.get("resourceArns", [])
        if not 1 <= len(arns) <= MAX_TARGETS or not all(one.startswith(prefix) for one in arns):
            raise _wrong("resourceArns must be instances of this account and region, five at most")
        role = _ROLE.fullmatch(request["roleArn"])
        roles = {one.name for one in iam_backends[DEFAULT_ACCOUNT_ID]["aws"].roles.values()}
        if role is None or role[1] != DEFAULT_ACCOUNT_ID or role[2] not in roles:
            raise _wrong(f"Unable to assume role {request['roleArn']}")
        template_id = f"EXT{secrets.token_hex(8)}"
        self.templates[template_id] = {**request, "id": template_id}
        return {"experimentTemplate": self.templates[template_id]}

    def _interrupt(self, template: Mapping[str, Any]) -> None:
        (action,), (target,) = template["actions"].values(), template["targets"].values()
        minutes = int(action["parameters"]["durationBeforeInterruption"].removeprefix("PT").removesuffix("M"))
        for arn in target["resourceArns"]:
            machine = self._machines.by_id.get(arn.rpartition("/")[2])
            # An experiment fails later if its target is not a spot machine; the call itself succeeds.
            if machine is not None and machine.is_alive and machine.market == "spot":
                self._machines.reclaim(machine, notice_seconds=60.0 * minutes)


def _wrong(message: str) -> ApiError:
    return ApiError("ValidationException", message)
