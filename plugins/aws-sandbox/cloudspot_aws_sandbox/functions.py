"""Lambda and EventBridge: moto keeps functions and rules; this module checks and really runs them.

Rules run functions on a schedule, or when EC2 announces a reclaim. Source: Lambda API
reference, CreateFunction and Invoke; EventBridge user guide, "Rate expressions", "Resource-based policies";
EC2 user guide, "Spot Instance interruption notices" (checked 2026-11).
"""

from __future__ import annotations

import base64
import io
import json
import logging
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta, timezone
from functools import cache, partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import botocore.session
from moto.awslambda.models import LambdaFunction, lambda_backends
from moto.core import DEFAULT_ACCOUNT_ID
from moto.events.models import events_backends
from moto.iam.models import iam_backends

from cloudspot.emulation.api_faults import Call, Faults
from cloudspot.emulation.function_process import FunctionProcesses, Result, run_apart
from cloudspot_aws_sandbox.callers import authenticate
from cloudspot_aws_sandbox.lambda_runtime import Code, LambdaRuntime
from cloudspot_aws_sandbox.query import ApiError, read_body, scope_of
from cloudspot_aws_sandbox.rights import needs_of

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

INTERRUPTION: Final = "EC2 Spot Instance Interruption Warning"
MAX_PACKED_BYTES: Final = 50 << 20
MAX_UNPACKED_BYTES: Final = 262_144_000
NEW_ROLE: Final = timedelta(seconds=5)
"""How long a new role is unknown to the emulated Lambda. The real one takes about as long, without a
guarantee.
"""
_RATE: Final = re.compile(r"rate\((?:(1) minute|([2-9]|[1-9]\d+) minutes|1 day)\)")
_ROLE: Final = re.compile(r"arn:aws:iam::(\d{12}):role/([\w+=,.@-]+)")

_log = logging.getLogger(__name__)


class StrictFunctions:
    """WSGI middleware: the functions of one account, and the rules that run them. Thread-safe."""

    def __init__(
        self,
        app: WSGIApplication,
        *,
        faults: Faults,
        secrets: Mapping[str, str],
        is_granted: Callable[[str, str, str, Mapping[str, str]], bool],
        environment: Callable[[str], Mapping[str, str]],
        directory: Path,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        """Run functions in ``directory``; requests to other services reach ``app`` unchanged.

        ``is_granted`` returns whether a key has a permission on a resource (an ARN), in a context.
        ``environment`` returns the variables for the process of a function: its role's credentials.
        """
        self._app = app
        self._faults = faults
        self._secrets = secrets
        self._is_granted = is_granted
        self._environment = environment
        self._directory = directory
        self._now = now
        self._processes = FunctionProcesses[LambdaRuntime]()
        self._due: dict[str, datetime] = {}
        """When each rule runs next, by its ARN and its expression."""
        self._known_roles: dict[str, datetime] = {}
        """When each role was first used, by its ARN."""

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        scope = scope_of(environ)
        service = "" if scope is None else scope[2]
        if service not in {"lambda", "events"}:
            return self._app(environ, start_response)
        body = read_body(environ)
        request: dict[str, Any] = {}
        action = name = region = key = ""
        headers = [("Content-Type", "application/json")]
        code: str | None = None
        try:
            region, key = authenticate(
                environ, body, service, secrets=self._secrets, faults=self._faults, now=self._now
            )
            action, name = _action_of(environ, service)
            request = json.loads(body or b"{}") if action != "Invoke" else {}
            asked = {"FunctionName": name, **request} if service == "lambda" else request
            self._authorize(Call(service, action, asked, region, None, access_key=key))
            injected = self._faults.take(action)
            if injected is not None and not injected.happens:
                raise ApiError(injected.code, injected.message, status=injected.status)
            self._check(action, request)
            if action == "Invoke":
                status, content = "200 OK", self._answer(name, body, region, headers)
            else:
                status, headers, content = self._forward(environ)
            if injected is not None:
                raise ApiError(injected.code, injected.message, status=injected.status)
        except ApiError as error:
            code = error.code
            status = f"{error.status} {HTTPStatus(error.status).phrase}"
            headers = [("Content-Type", "application/json"), ("x-amzn-ErrorType", error.code)]
            content = json.dumps({"__type": error.code, "message": error.message}).encode()
        # The function's code would fill the log.
        shown = {name: value for name, value in request.items() if name not in {"Code", "ZipFile"}}
        self._faults.record(Call(service, action, shown, region, code, access_key=key))
        kept = [one for one in headers if one[0].lower() != "content-length"]
        start_response(status, [*kept, ("Content-Length", str(len(content)))])
        return [content]

    def _authorize(self, call: Call) -> None:
        for right, arn, context in needs_of(call, account=DEFAULT_ACCOUNT_ID):
            if right in self._faults.denied or not self._is_granted(call.access_key, right, arn, context):
                text = f"User is not authorized to perform: {right}"
                raise ApiError("AccessDeniedException", text, status=403)

    def _answer(self, name: str, event: bytes, region: str, headers: list[tuple[str, str]]) -> bytes:
        result = self.invoke(name, event, region)
        log = result.log.encode()[-4096:]
        headers.append(("X-Amz-Log-Result", base64.b64encode(log).decode()))
        if result.is_error:
            headers.append(("X-Amz-Function-Error", "Unhandled"))
        return result.payload

    def _forward(self, environ: dict[str, Any]) -> tuple[str, list[tuple[str, str]], bytes]:
        """Let moto answer."""
        seen: list[tuple[str, list[tuple[str, str]]]] = []

        def start(status: str, headers: list[tuple[str, str]], *_: object) -> Callable[[bytes], object]:
            seen.append((status, headers))
            return lambda _: None

        content = b"".join(self._app(environ, start))
        return *seen[-1], content

    def _check(self, action: str, request: Mapping[str, Any]) -> None:
        """Refuse a call to Lambda or EventBridge that the real service refuses.

        Raises:
            ApiError: the call is refused; the wording is from memory.
        """
        if action == "CreateFunction":
            self._check_role(str(request.get("Role")))
        if action in {"CreateFunction", "UpdateFunctionCode"}:
            _check_code(base64.b64decode(request.get("Code", request).get("ZipFile", "")))
        schedule = request.get("ScheduleExpression") if action == "PutRule" else None
        if schedule is not None and _RATE.fullmatch(str(schedule)) is None:
            raise ApiError("ValidationException", "Parameter ScheduleExpression is not valid.")

    def _check_role(self, arn: str) -> None:
        match = _ROLE.fullmatch(arn)
        roles = iam_backends[DEFAULT_ACCOUNT_ID]["aws"].roles.values()
        known = {one.name for one in roles if "lambda.amazonaws.com" in str(one.assume_role_policy_document)}
        now = self._now()
        is_new = now - self._known_roles.setdefault(arn, now) < NEW_ROLE
        if match is None or match[2] not in known or is_new:
            text = "The role defined for the function cannot be assumed by Lambda."
            raise ApiError("InvalidParameterValueException", text)

    def invoke(self, name: str, event: bytes, region: str) -> Result:
        """Run the function until it returns.

        Raises:
            ApiError: the function does not exist.
        """
        function = self._find(name, region)
        # Each deployment has execution environments of its own.
        version = function.function_arn, function.code_sha_256, json.dumps(function.environment_vars)
        with self._processes.one(
            version, lambda: LambdaRuntime(self._code(function), self._directory)
        ) as one:
            return one.invoke(event)

    def run_due(self, region: str) -> None:
        """Run the functions that are due, each in its own thread, so that a late pass delays no other."""
        now = self._now()
        for rule in self._rules(region):
            match = _RATE.fullmatch(str(rule.scheduled_expression or ""))
            if match is None:
                continue
            minutes = match[1] or match[2]
            interval = timedelta(minutes=int(minutes)) if minutes else timedelta(days=1)
            key = f"{rule.arn} {rule.scheduled_expression}"
            # The first run is one interval after the rule was made.
            if now >= self._due.setdefault(key, now + interval):
                self._due[key] = now + interval
                self._run_targets(rule, {"source": "aws.events", "detail-type": "Scheduled Event"}, region)

    def publish(self, detail_type: str, detail: Mapping[str, Any], region: str) -> None:
        """Run the functions that are triggered by this EC2 event."""
        event = {"source": "aws.ec2", "detail-type": detail_type, "detail": dict(detail)}
        for rule in self._rules(region):
            pattern = rule.event_pattern.get_pattern()
            if "aws.ec2" in pattern.get("source", ()) and detail_type in pattern.get("detail-type", ()):
                self._run_targets(rule, event, region)

    def _rules(self, region: str) -> list[Any]:
        buses = events_backends[DEFAULT_ACCOUNT_ID][region].event_buses.values()
        return [rule for bus in buses for rule in bus.rules.values() if rule.state == "ENABLED"]

    def kill_running(self) -> None:
        """Kill the functions that are running."""
        self._processes.kill_running()

    def close(self) -> None:
        """End all processes."""
        self._processes.close()

    def _run_targets(self, rule: Any, event: Mapping[str, Any], region: str) -> None:
        for target in rule.targets:
            name = str(target["Arn"]).rpartition(":")[2]
            if not self._may_run(rule.arn, name, region):
                _log.warning("rule %s has no permission to run %s", rule.name, name)
                continue
            about = {"version": "0", "id": str(uuid4()), "account": DEFAULT_ACCOUNT_ID, "region": region}
            given = target.get("Input") or json.dumps({**about, **event})
            log = self._directory / "functions.log"
            run_apart(name, partial(self.invoke, name, given.encode(), region), log=log, refusal=ApiError)

    def _may_run(self, rule: str, name: str, region: str) -> bool:
        allowed = json.dumps(self._find(name, region).policy.statements)
        return rule in allowed and "events.amazonaws.com" in allowed

    def _find(self, name: str, region: str) -> LambdaFunction:
        for function in lambda_backends[DEFAULT_ACCOUNT_ID][region].list_functions():
            if name in {function.function_name, function.function_arn}:
                assert isinstance(function, LambdaFunction)
                return function
        raise ApiError("ResourceNotFoundException", f"Function not found: {name}", status=404)

    def _code(self, function: LambdaFunction) -> Code:
        match = _ROLE.fullmatch(str(function.role))
        assert match is not None, "checked when it was made"
        return Code(
            name=str(function.function_name),
            archive=bytes(function.code_bytes),
            handler=str(function.handler),
            timeout_seconds=float(function.timeout),
            memory_mib=int(function.memory_size),
            environment={**self._environment(match[2]), **function.environment_vars},
        )


def _check_code(archive: bytes) -> None:
    if len(archive) > MAX_PACKED_BYTES:
        text = "Request must be smaller than 70167211 bytes for the CreateFunction operation"
        raise ApiError("RequestEntityTooLargeException", text, status=413)
    with zipfile.ZipFile(io.BytesIO(archive)) as packed:
        if sum(one.file_size for one in packed.infolist()) >= MAX_UNPACKED_BYTES:
            text = f"Unzipped size must be smaller than {MAX_UNPACKED_BYTES} bytes"
            raise ApiError("InvalidParameterValueException", text)


def _action_of(environ: Mapping[str, Any], service: str) -> tuple[str, str]:
    """Return the operation's name, and the name of its function."""
    if service == "events":
        return str(environ.get("HTTP_X_AMZ_TARGET", "")).rpartition(".")[2], ""
    for pattern, verb, name in _operations():
        match = pattern.fullmatch(str(environ["PATH_INFO"]))
        if match is not None and verb == environ["REQUEST_METHOD"]:
            found = match.groupdict()
            return name, found.get("FunctionName") or found.get("Resource", "").rpartition(":")[2]
    return "", ""


@cache
def _operations() -> tuple[tuple[re.Pattern[str], str, str], ...]:
    model = botocore.session.get_session().get_service_model("lambda")
    operations = []
    for name in model.operation_names:
        http = model.operation_model(name).http
        path = http["requestUri"].partition("?")[0].rstrip("/")
        pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path)
        operations.append((re.compile(pattern + "/?"), http["method"], name))
    return tuple(operations)
