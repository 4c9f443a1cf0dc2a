"""EC2 around moto, as strict as the real EC2, with client tokens, limited capacity and lagging listings.

The module refuses requests that AWS refuses and moto accepts, and adds features that the plugin needs and
moto lacks. Every call is recorded. Calls to other services pass through to the inner application.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from typing import Any, Final
from urllib.parse import urlencode
from xml.sax.saxutils import escape

from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.iam.models import iam_backends
from moto.scheduler.models import scheduler_backends

from cloudspot.emulation.api_faults import Call, Faults
from cloudspot.emulation.cloud import MachineHost
from cloudspot_aws_sandbox import iamlimits, launching, services
from cloudspot_aws_sandbox.callers import authenticate
from cloudspot_aws_sandbox.catalogue import describe_instance_types, describe_spot_price_history
from cloudspot_aws_sandbox.experiments import Experiments
from cloudspot_aws_sandbox.experiments import action_of as experiment_action
from cloudspot_aws_sandbox.groups import PlacementGroups
from cloudspot_aws_sandbox.images import BARE_IMAGE_ID, image_in, install_images
from cloudspot_aws_sandbox.machines import Machines
from cloudspot_aws_sandbox.query import (
    ApiError,
    parse_form,
    parse_parameters,
    read_body,
    scope_of,
    xml_answer,
    xml_error,
)
from cloudspot_aws_sandbox.rights import needs_of
from cloudspot_aws_sandbox.s3requests import is_for_s3
from cloudspot_aws_sandbox.saved_images import SavedImages
from cloudspot_aws_sandbox.schedules import Schedules

Environ = dict[str, Any]
App = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]
Answer = tuple[int, str, bytes]

CONSOLE_BYTES: Final = 64 << 10
"""How much of a console's output is kept (EC2 API reference, GetConsoleOutput, checked 2026-11)."""
SPOT_ROLE: Final = "AWSServiceRoleForEC2Spot"
_CODES: Final = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopped": 80}
_JSON_TARGETS: Final = re.compile(r"\w+\.(\w+)")
_EC2_CONTENT: Final = "text/xml;charset=UTF-8"
_ELSEWHERE: Final = {"events", "lambda", "logs", "s3"}
"""The services whose callers are checked by the inner application."""


TOKEN_FORGOTTEN_SECONDS: Final = 10.0
PROFILE_UNKNOWN_SECONDS: Final = 60.0
"""The durations of two of the faults in ``faults.contrary``."""


class StrictEc2:
    """A WSGI application; ``inner`` is moto's application, or middleware around it for another service."""

    def __init__(
        self,
        inner: App,
        host: MachineHost,
        *,
        secrets: Mapping[str, str],
        faults: Faults | None = None,
        is_granted: Callable[[str, str, str, Mapping[str, str]], bool] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Boot machines on ``host`` for callers whose key is in ``secrets``.

        ``is_granted`` returns whether a key has a permission on a resource in a context. ``clock`` (seconds
        since the epoch) measures lags, and ``now`` the age of signatures.
        """
        self.faults = faults or Faults()
        self.machines = Machines(host, self.faults, clock)
        self._inner = inner
        self._secrets = secrets
        self._is_granted = is_granted
        self._caller = threading.local()
        self._spot_role_lock = threading.Lock()
        self._now = now
        self._clock = clock
        self._groups = PlacementGroups(self.machines)
        self._images = SavedImages(self.machines, host, clock)
        self._experiments = Experiments(self.machines)
        self._schedules = Schedules(self._terminate_instances, clock)
        self._taken: dict[tuple[str, str, str], launching.Taken] = {}
        self._first_launch_at: float | None = None
        self._regions: set[str] = set()
        self._handlers: dict[str, Callable[[Mapping[str, Any], str], Mapping[str, Any]]] = {
            "CreateImage": self._create_image,
            "CreatePlacementGroup": self._groups.create,
            "CreateTags": self._create_tags,
            "DeregisterImage": self._deregister_image,
            "DeletePlacementGroup": self._groups.delete,
            "DescribeInstanceTypes": describe_instance_types,
            "GetConsoleOutput": self._get_console_output,
            "DescribePlacementGroups": self._groups.describe,
            "DescribeSpotInstanceRequests": self._describe_spot_requests,
            "DescribeSpotPriceHistory": lambda parameters, region: describe_spot_price_history(
                parameters, region, self.faults.spot_plan.price_factor
            ),
            "StopInstances": self._stop_instances,
            "TerminateInstances": self._terminate_instances,
        }

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer one request."""
        scope = scope_of(environ)
        service = _service_of(environ) if scope is None else scope[2]
        if service in _ELSEWHERE:
            return self._inner(environ, start_response)
        key, region, _ = scope or ("", "", "")
        body = read_body(environ)
        action, parameters = _action_of(environ, service, body)
        error: ApiError | None = None
        try:
            authenticate(environ, body, service, secrets=self._secrets, faults=self.faults, now=self._now)
            status, kind, content = self._answer(environ, key, service, action, parameters, region)
            if status >= 400:
                match = re.search(rb"<Code>([^<]+)</Code>", content)
                error = ApiError(match[1].decode() if match else str(status), "", status=status)
        except ApiError as refused:
            error = refused
            status, kind, content = _error_answer(service, refused)
        code = None if error is None else error.code
        self.faults.record(Call(service, action, parameters, region, code, access_key=key))
        start_response(
            f"{status} {'OK' if status < 400 else 'Error'}",
            [("Content-Type", kind), ("Content-Length", str(len(content)))],
        )
        return [content]

    def run_schedules(self) -> None:
        """Carry out the schedules that are due.

        Every request does this too; call it while no requests may come.
        """
        with self.machines.lock:
            for region in self._regions:
                self._schedules.run_due(region)

    def _answer(
        self,
        environ: Environ,
        key: str,
        service: str,
        action: str,
        parameters: Mapping[str, Any],
        region: str,
    ) -> Answer:
        if service == "ec2" and self.faults.is_throttled():
            raise ApiError("RequestLimitExceeded", "Request limit exceeded.", status=503)
        injected = self.faults.take(action)
        if injected is not None and not injected.happens:
            raise ApiError(injected.code, injected.message, status=injected.status)
        self._authorize(Call(service, action, parameters, region, None, access_key=key))
        self.run_schedules()
        if service == "ec2":
            with self.machines.lock:
                answer = self._ec2(environ, action, region)
        else:
            answer = self._other(environ, service, action, parameters, region)
        if injected is not None:
            raise ApiError(injected.code, injected.message, status=injected.status)
        return answer

    def _authorize(self, call: Call) -> None:
        # Without this permission, the image is removed but its snapshots stay, as the response shows.
        asked = {"ec2:DeleteSnapshot"} if call.action == "DeregisterImage" else set()
        self._caller.may_delete_snapshots = True
        for right, arn, context in needs_of(call, account=DEFAULT_ACCOUNT_ID):
            is_granted = self._is_granted is None or self._is_granted(call.access_key, right, arn, context)
            if right in self.faults.denied or not is_granted:
                if right not in asked:
                    raise _denial(call.service, right)
                self._caller.may_delete_snapshots = False
        if call.action == "RunInstances" and call.parameters.get("InstanceMarketOptions"):
            with self._spot_role_lock:
                self._make_spot_role(call.access_key)

    def _make_spot_role(self, key: str) -> None:
        """Make the role with which EC2 buys spot machines, using the caller's permissions, unless it exists.

        Source: EC2 user guide, "Service-linked role for Spot Instance requests" (checked 2026-11).
        """
        iam, right = iam_backends[DEFAULT_ACCOUNT_ID]["aws"], "iam:CreateServiceLinkedRole"
        if any(one.name == SPOT_ROLE for one in iam.roles.values()):
            return
        arn = f"arn:aws:iam::{DEFAULT_ACCOUNT_ID}:role/aws-service-role/spot.amazonaws.com/{SPOT_ROLE}"
        is_granted = self._is_granted is None or self._is_granted(key, right, arn, {})
        if right in self.faults.denied or not is_granted:
            raise ApiError(
                "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
                "The provided credentials do not have permission to create the service-linked role for EC2 "
                "Spot Instances.",
                status=403,
            )
        trust = '{"Statement": [{"Principal": {"Service": "spot.amazonaws.com"}}]}'
        iam.create_role(SPOT_ROLE, trust, "/aws-service-role/spot.amazonaws.com/", None, "", [], None)

    # --- EC2 ------------------------------------------------------------------------------------

    def _ec2(self, environ: Environ, action: str, region: str) -> Answer:
        self._prepare(region)
        form = parse_form(read_body(environ))
        parameters = parse_parameters(action, form)
        self.machines.refresh()
        self._images.refresh()
        if action == "RunInstances":
            return 200, _EC2_CONTENT, self._run_instances(environ, form, parameters, region)
        if parameters.get("DryRun"):
            raise ApiError(
                "DryRunOperation", "Request would have succeeded, but DryRun flag is set.", status=412
            )
        if action == "DescribeInstances" and not 5 <= parameters.get("MaxResults", 1000) <= 1000:
            raise ApiError("InvalidParameterValue", "Value for parameter maxResults must be from 5 to 1000")
        handler = self._handlers.get(action)
        if handler is not None:
            return 200, _EC2_CONTENT, xml_answer(action, handler(parameters, region))
        return self._forward(environ, form)

    def _prepare(self, region: str) -> None:
        """Empty moto's EC2 for a region that is used for the first time."""
        if region in self._regions:
            return
        # Otherwise, moto would read 1,300 images for each region.
        os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"
        if region not in ec2_backends[DEFAULT_ACCOUNT_ID].regions:
            raise ApiError("AuthFailure", f"the emulated AWS has no region {region}", status=401)
        backend = ec2_backends[DEFAULT_ACCOUNT_ID][region]
        backend.reset()
        scheduler_backends[DEFAULT_ACCOUNT_ID][region].reset()
        install_images(backend)
        self._regions.add(region)

    def _run_instances(
        self, environ: Environ, form: Mapping[str, str], parameters: Mapping[str, Any], region: str
    ) -> bytes:
        zone = launching.zone_of(parameters, region)
        launching.check_request(parameters, region, zone)
        self._groups.check(parameters, region)
        if parameters.get("DryRun"):
            raise ApiError(
                "DryRunOperation", "Request would have succeeded, but DryRun flag is set.", status=412
            )
        # A token is valid in its zone (EC2 developer guide, RunInstances idempotency).
        token = parameters.get("ClientToken", "")
        self._check_profile_is_known()
        taken = self._taken.get((region, zone, token)) if token else None
        if taken is not None and self._is_forgotten(taken):
            taken = None
        request = launching.comparable(parameters)
        saved = self._images.disk_of(parameters["ImageId"])
        if taken is not None:
            return self._replay(environ, taken, request, region)
        launching.check_price(parameters, zone, self.faults.spot_plan.price_factor(zone))
        granted = launching.grant(parameters, zone, self.machines, self.faults)
        counts = {"MinCount": str(granted), "MaxCount": str(granted)}
        placed = launching.subnet_form(parameters, region, zone)
        status, _, content = self._forward(environ, {**form, **placed, **counts})
        if status != 200:
            raise ApiError(
                "InternalError", f"moto refused: {content.decode(errors='replace')[:300]}", status=500
            )
        ids = tuple(dict.fromkeys(re.findall(r"<instanceId>(i-[0-9a-f]+)</instanceId>", content.decode())))
        assert len(ids) == granted, "one machine per index"
        self._give_profile(ids, parameters, region)
        if token:
            self._taken[region, zone, token] = launching.Taken(request, ids, self._clock())
        self.machines.adopt(
            region,
            ids,
            parameters,
            is_bare=parameters["ImageId"] == image_in(region, BARE_IMAGE_ID) if saved is None else saved[1],
            disk=None if saved is None else saved[0],
            vcpus=INSTANCE_TYPES[parameters["InstanceType"]]["VCpuInfo"]["DefaultVCpus"],
        )
        return self._reservation(environ, ids)

    def _is_forgotten(self, taken: launching.Taken) -> bool:
        is_short = "token-forgotten" in self.faults.contrary
        return is_short and self._clock() - taken.at > TOKEN_FORGOTTEN_SECONDS

    def _check_profile_is_known(self) -> None:
        """If this fault is set, refuse a launch whose instance profile has just been made, as EC2 does."""
        if "profile-unknown" not in self.faults.contrary:
            return
        if self._first_launch_at is None:
            self._first_launch_at = self._clock()
        if self._clock() - self._first_launch_at < PROFILE_UNKNOWN_SECONDS:
            raise ApiError(
                "InvalidParameterValue",
                "Value (cloudspot-node) for parameter iamInstanceProfile.name is invalid.",
            )

    def _replay(self, environ: Environ, taken: launching.Taken, request: str, region: str) -> bytes:
        if taken.request != request:
            raise ApiError(
                "IdempotentParameterMismatch",
                "Arguments on this idempotent request are inconsistent with arguments used in previous "
                "request(s).",
            )
        if not all(self.machines.by_id[one].is_alive for one in taken.instance_ids):
            raise ApiError(
                "IdempotentInstanceTerminated",
                "The request to launch an instance uses the same client token as a previous request for "
                "which the instance has been terminated.",
            )
        return self._reservation(environ, taken.instance_ids)

    def _reservation(self, environ: Environ, instance_ids: Iterable[str]) -> bytes:
        """Return RunInstances' response, made from that of DescribeInstances."""
        ids = list(instance_ids)
        self.machines.show(ids)
        form = {f"InstanceId.{i}": one for i, one in enumerate(ids, start=1)}
        _, _, content = self._forward(
            environ, {"Action": "DescribeInstances", "Version": "2016-11-15", **form}
        )
        self.machines.hide_the_young()
        match = re.search(
            r"<reservationSet>\s*<item>(.*)</item>\s*</reservationSet>", content.decode(), re.DOTALL
        )
        assert match is not None, "the new machines are in DescribeInstances"
        return xml_answer("RunInstances", {}).replace(
            b"</RunInstances", match[1].encode() + b"</RunInstances"
        )

    def _give_profile(self, ids: Iterable[str], parameters: Mapping[str, Any], region: str) -> None:
        """Give every machine the profile; moto gives it only to the first machine."""
        profile = parameters.get("IamInstanceProfile")
        if not profile:
            return
        backend = ec2_backends[DEFAULT_ACCOUNT_ID][region]
        for instance_id in list(ids)[1:]:
            backend.associate_iam_instance_profile(
                instance_id=instance_id,
                iam_instance_profile_name=profile.get("Name"),
                iam_instance_profile_arn=profile.get("Arn"),
            )

    def _create_image(self, parameters: Mapping[str, Any], region: str) -> Mapping[str, Any]:
        self._require([parameters["InstanceId"]], region)
        return self._images.create(parameters, region)

    def _deregister_image(self, parameters: Mapping[str, Any], region: str) -> Mapping[str, Any]:
        may = self._caller.may_delete_snapshots
        return self._images.deregister(parameters, region, may_delete_snapshots=may)

    def _create_tags(self, parameters: Mapping[str, Any], region: str) -> Mapping[str, Any]:
        launching.check_tags(parameters["Tags"])
        self._require([one for one in parameters["Resources"] if one.startswith("i-")], region)
        values = {tag["Key"]: tag.get("Value", "") for tag in parameters["Tags"]}
        self.machines.tag(region, parameters["Resources"], values)
        return {}

    def _terminate_instances(self, parameters: Mapping[str, Any], region: str) -> Mapping[str, Any]:
        self.machines.refresh()
        ids = list(dict.fromkeys(parameters["InstanceIds"]))
        self._require(ids, region)
        before = {instance_id: self.machines.by_id[instance_id].instance.state for instance_id in ids}
        for instance_id in ids:
            machine = self.machines.by_id[instance_id]
            machine.is_stopped = False
            if machine.is_alive:
                self.machines.terminate(machine)
        self.machines.refresh()
        return {
            "TerminatingInstances": [
                {
                    "InstanceId": instance_id,
                    "PreviousState": {"Code": _CODES[before[instance_id]], "Name": before[instance_id]},
                    "CurrentState": {
                        "Code": _CODES[self.machines.by_id[instance_id].instance.state],
                        "Name": self.machines.by_id[instance_id].instance.state,
                    },
                }
                for instance_id in ids
            ]
        }

    def _stop_instances(self, parameters: Mapping[str, Any], region: str) -> Mapping[str, Any]:
        """Stop machines at once; EC2 refuses this for one-time spot requests ("Stop a Spot Instance")."""
        ids = list(dict.fromkeys(parameters["InstanceIds"]))
        self._require(ids, region)
        before = {instance_id: self.machines.by_id[instance_id].instance.state for instance_id in ids}
        for instance_id in ids:
            machine = self.machines.by_id[instance_id]
            if machine.market == "spot":
                text = f"You can't stop the Spot Instance '{instance_id}' because it is associated with a"
                raise ApiError("UnsupportedOperation", f"{text} one-time Spot Instance request.")
            if before[instance_id] not in {"running", "stopped"}:
                raise ApiError(
                    "IncorrectInstanceState", f"The instance '{instance_id}' is not in a state to stop."
                )
        for instance_id in ids:
            self.machines.stop(self.machines.by_id[instance_id])
        return {
            "StoppingInstances": [
                {
                    "InstanceId": instance_id,
                    "PreviousState": {"Code": _CODES[before[instance_id]], "Name": before[instance_id]},
                    "CurrentState": {"Code": _CODES["stopped"], "Name": "stopped"},
                }
                for instance_id in ids
            ]
        }

    def _get_console_output(self, parameters: Mapping[str, Any], region: str) -> Mapping[str, Any]:
        instance_id = parameters["InstanceId"]
        self._require([instance_id], region)
        machine = self.machines.by_id[instance_id]
        if parameters.get("Latest"):
            if INSTANCE_TYPES[machine.instance_type].get("Hypervisor") != "nitro":
                raise ApiError("UnsupportedOperation", "This instance type does not support Latest.")
            text = self.machines.console(machine) if machine.is_alive else ""
        else:
            text = machine.posted
        output = base64.b64encode(text.encode()[-CONSOLE_BYTES:]).decode()
        answer = {"InstanceId": instance_id, "Timestamp": datetime.fromtimestamp(self._clock(), timezone.utc)}
        return {**answer, "Output": output} if output else answer

    def _describe_spot_requests(self, parameters: Mapping[str, Any], region: str) -> Mapping[str, Any]:
        wanted = parameters.get("SpotInstanceRequestIds")
        machines = [
            one
            for one in self.machines.by_id.values()
            if one.request_id is not None
            and one.region == region
            and (not wanted or one.request_id in wanted)
        ]
        unknown = set(wanted or ()) - {one.request_id for one in machines}
        if unknown:
            raise ApiError(
                "InvalidSpotInstanceRequestID.NotFound",
                f"The spot instance request ID '{min(unknown)}' does not exist",
            )
        return {
            "SpotInstanceRequests": [
                {
                    "SpotInstanceRequestId": one.request_id,
                    "InstanceId": one.id,
                    "State": "active" if one.is_alive else "closed",
                    "Status": {"Code": "fulfilled" if one.is_alive else "instance-terminated-by-user"},
                    "Type": "one-time",
                    "LaunchedAvailabilityZone": one.zone,
                    "InstanceInterruptionBehavior": "terminate",
                    "Tags": [
                        {"Key": name, "Value": value} for name, value in self.machines.tags_of(one).items()
                    ],
                }
                for one in machines
            ]
        }

    def _require(self, instance_ids: Iterable[str], region: str) -> None:
        """Refuse malformed ids, and ids that the region does not know yet or no longer knows."""
        ids = list(instance_ids)
        malformed = [one for one in ids if not re.fullmatch(r"i-[0-9a-f]{8}(?:[0-9a-f]{9})?", one)]
        if malformed:
            raise ApiError("InvalidInstanceID.Malformed", f'Invalid id: "{malformed[0]}"')
        unknown = [one for one in ids if not self.machines.is_known(one, region)]
        if len(unknown) == 1:
            raise ApiError("InvalidInstanceID.NotFound", f"The instance ID '{unknown[0]}' does not exist")
        if unknown:
            raise ApiError(
                "InvalidInstanceID.NotFound", f"The instance IDs '{', '.join(unknown)}' do not exist"
            )

    # --- other services -------------------------------------------------------------------------

    def _other(
        self, environ: Environ, service: str, action: str, parameters: Mapping[str, Any], region: str
    ) -> Answer:
        answer: Mapping[str, Any] | None = None
        if service == "fis":
            with self.machines.lock:
                self.machines.refresh()
                answer = self._experiments.answer(action, environ["PATH_INFO"], parameters, region)
        elif service == "iam":
            iamlimits.check(iam_backends[DEFAULT_ACCOUNT_ID]["aws"], action, parameters)
        elif action == "CreateSchedule":
            self._schedules.check(environ["PATH_INFO"], parameters)
        elif action == "GetProducts":
            answer = services.get_products(parameters, region)
            if "disk-without-price" in self.faults.contrary and services.is_of_volumes(parameters):
                answer["PriceList"] = []
        elif action == "GetParameter":
            answer = services.get_parameter(parameters, region)
        elif action == "GetServiceQuota":
            answer = services.get_service_quota(parameters, self.faults)
        elif action == "DecodeAuthorizationMessage":
            decoded = escape(services.decode_denial(str(parameters.get("EncodedMessage", ""))))
            return (
                200,
                "text/xml",
                (
                    "<DecodeAuthorizationMessageResponse><DecodeAuthorizationMessageResult><DecodedMessage>"
                    f"{decoded}</DecodedMessage></DecodeAuthorizationMessageResult>"
                    "</DecodeAuthorizationMessageResponse>"
                ).encode(),
            )
        if answer is not None:
            return 200, "application/x-amz-json-1.1", json.dumps(answer).encode()
        return self._forward(environ, None)

    def _forward(self, environ: Environ, form: Mapping[str, str] | None) -> Answer:
        """Let the inner application answer the request, with ``form`` as its body if that is given."""
        inner = dict(environ)
        if form is not None:
            body = urlencode(form).encode()
            inner["wsgi.input"] = io.BytesIO(body)
            inner["CONTENT_LENGTH"] = str(len(body))
        head: list[Any] = []
        chunks = self._inner(inner, lambda status, headers, *_: head.extend((status, headers)))
        content = b"".join(chunks)
        status, kind = int(head[0].split()[0]), dict(head[1]).get("Content-Type", "text/xml")
        if status >= 500 and b"<Code>" not in content:
            raise ApiError("SandboxNotImplemented", "the emulated AWS does not support this call or filter")
        return status, kind, content


def _service_of(environ: Environ) -> str:
    """Return the service to which an unsigned request belongs, judged by its format."""
    if is_for_s3(environ) or str(environ.get("PATH_INFO", "")).startswith("/moto-api"):
        return "s3"
    return "logs" if "HTTP_X_AMZ_TARGET" in environ else "ec2"


def _action_of(environ: Environ, service: str, body: bytes) -> tuple[str, Mapping[str, Any]]:
    """Return the call's name and its parameters, as far as they can be read without a model."""
    if service in {"ec2", "iam", "sts"}:
        form = parse_form(body)
        action = form.get("Action", "")
        if service != "ec2":
            return action, form
        try:
            return action, parse_parameters(action, form)
        except ApiError:
            return action, form
    if service == "scheduler":
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"].strip("/")
        kind = "Schedule" if "/" in path else "Schedules"
        verb = {"POST": "Create", "PUT": "Update", "DELETE": "Delete"}.get(method)
        return f"{verb or ('Get' if kind == 'Schedule' else 'List')}{kind}", _json(body)
    if service == "fis":
        return experiment_action(environ["REQUEST_METHOD"], environ["PATH_INFO"]), _json(body)
    match = _JSON_TARGETS.fullmatch(environ.get("HTTP_X_AMZ_TARGET", ""))
    return match[1] if match else "", _json(body)


def _json(body: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(body or b"{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _denial(service: str, right: str) -> ApiError:
    user = f"User: arn:aws:iam::{DEFAULT_ACCOUNT_ID}:user/sandbox"
    if service == "ec2":
        return ApiError(
            "UnauthorizedOperation",
            "You are not authorized to perform this operation. Encoded authorization failure message: "
            + services.encode_denial(right),
            status=403,
        )
    code = "AccessDenied" if service in {"iam", "sts"} else "AccessDeniedException"
    status = 403 if service in {"fis", "iam", "sts", "scheduler"} else 400
    return ApiError(code, f"{user} is not authorized to perform: {right}", status=status)


def _error_answer(service: str, error: ApiError) -> Answer:
    if service == "ec2":
        return error.status, _EC2_CONTENT, xml_error(error)
    if service in {"iam", "sts"}:
        content = (
            f"<ErrorResponse><Error><Type>Sender</Type><Code>{escape(error.code)}</Code>"
            f"<Message>{escape(error.message)}</Message></Error></ErrorResponse>"
        )
        return error.status, "text/xml", content.encode()
    content = json.dumps({"__type": error.code, "message": error.message})
    return error.status, "application/x-amz-json-1.1", content.encode()
