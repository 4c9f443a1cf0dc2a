"""Function Compute 3.0 and its triggers: functions are checked, kept, and really run.

Functions are run by timers and by EventBridge at ECS's notices. Source: Function Compute API reference,
version 2023-03-30; "Timer triggers", "Configure event triggers for Alibaba Cloud services"; ECS, "Instance
event notifications" (checked 2026-11). From memory: a function with triggers cannot be deleted, and a role
takes a while to be known.
"""

from __future__ import annotations

import json
import re
import secrets as randomness
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastcrc import crc64

from cloudspot.emulation.api_faults import Call, Faults
from cloudspot.emulation.function_process import FunctionProcesses, Result, run_apart
from cloudspot.emulation.role_credentials import Credentials, RoleKeys
from cloudspot_aliyun_sandbox.account import ACCOUNT_ID, Account
from cloudspot_aliyun_sandbox.fc_requests import (
    EVERY,
    NAME,
    SETTINGS,
    VERSION,
    archive_of,
    check_settings,
    config_of,
    read_fields,
    route,
)
from cloudspot_aliyun_sandbox.fc_runtime import Code, CustomRuntime
from cloudspot_aliyun_sandbox.rpc import ApiError, Gate, error_body, read_parameters

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

NEW_SECONDS: Final = 5.0
"""How long a new role is unknown here; the real time is undocumented."""
PENDING_SECONDS: Final = 1.0
"""How long a new or changed function is not ready, in seconds."""
_ROLE: Final = re.compile(rf"acs:ram::{ACCOUNT_ID}:role/([\w.-]+)")


@dataclass
class Trigger:
    """A trigger of a function."""

    name: str
    type: str
    config: dict[str, Any]

    def describe(self) -> dict[str, str]:
        """Return the trigger in the form of GetTrigger."""
        return {
            "triggerName": self.name,
            "triggerType": self.type,
            "triggerConfig": json.dumps(self.config),
            "qualifier": "LATEST",
        }


@dataclass
class Function:
    """A function of the account."""

    name: str
    region: str
    settings: dict[str, Any]
    archive: bytes
    changed_at: float
    is_new: bool = True
    triggers: dict[str, Trigger] = field(default_factory=dict)
    retries: int = 3

    def describe(self, now: float) -> dict[str, Any]:
        """Return the function in the form of GetFunction."""
        is_settled = now - self.changed_at >= PENDING_SECONDS
        changed = datetime.fromtimestamp(self.changed_at, timezone.utc)
        return {
            **self.settings,
            "functionName": self.name,
            "functionArn": f"acs:fc:{self.region}:{ACCOUNT_ID}:functions/{self.name}",
            "codeSize": len(self.archive),
            "codeChecksum": str(crc64.xz(self.archive)),
            "lastModifiedTime": changed.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "state": "Active" if is_settled or not self.is_new else "Pending",
            "lastUpdateStatus": "Successful" if is_settled or self.is_new else "InProgress",
        }


class StrictFunctions:
    """WSGI middleware: the functions of one account, and their triggers. Thread-safe."""

    def __init__(
        self,
        app: WSGIApplication,
        *,
        account: Account,
        faults: Faults,
        secrets: Mapping[str, str],
        roles: RoleKeys,
        is_granted: Callable[[str, str, str], bool],
        issue: Callable[[str], Credentials],
        environment: Mapping[str, str],
        directory: Path,
    ) -> None:
        """Run functions in ``directory``; requests to other services reach ``app`` unchanged.

        ``is_granted`` returns whether a key has a permission on a resource; ``issue`` makes a key of a role.
        ``environment`` has the variables with which every function reaches this cloud.
        """
        self._app = app
        self._account = account
        self._faults = faults
        self._gate = Gate(secrets, roles)
        self._is_granted = is_granted
        self._issue = issue
        self._environment = environment
        self._directory = directory
        self.clock = time.time
        self._lock = threading.Lock()
        self.functions: dict[str, Function] = {}
        self._processes = FunctionProcesses[CustomRuntime]()
        self._due: dict[tuple[str, str, str], float] = {}
        """When each timer runs next, by its function, its name and its rate."""
        self._known_roles: dict[str, float] = {}
        """When each role was first used, by its name."""

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        if not str(environ.get("PATH_INFO", "")).startswith(f"/{VERSION}/"):
            return self._app(environ, start_response)
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(length) if length else b""
        signed: dict[str, str] = {}
        shown: dict[str, Any] = {}
        action, status, code = "", 200, None
        headers = [("Content-Type", "application/json")]
        try:
            action, names = route(environ)
            signed = read_parameters(environ, body)
            self._admit(environ, body, signed, action, names.get("function", ""))
            request = {} if action == "InvokeFunction" else read_fields(action, body)
            shown = {**request, **names}
            if action == "InvokeFunction":
                result = self.invoke(names["function"], body)
                content = result.payload
                if result.is_error:
                    headers.append(("X-Fc-Error-Type", "UnhandledInvocationError"))
            else:
                with self._lock:
                    answer = self._act(action, request, **names)
                status = 200 if answer is not None else 204
                content = b"" if answer is None else json.dumps(answer).encode()
        except ApiError as error:
            code, status, content = error.code, error.status, error_body(error)
        shown.pop("code", None)  # The function's code would fill the log.
        self._faults.record(Call("fc", action, shown, "", code, access_key=signed.get("AccessKeyId", "")))
        headers += [("X-Fc-Request-Id", randomness.token_hex(16)), ("Content-Length", str(len(content)))]
        start_response(f"{status} {'OK' if status < 400 else 'Error'}", headers)
        return [content]

    def _admit(
        self, environ: Mapping[str, Any], body: bytes, signed: Mapping[str, str], action: str, name: str
    ) -> None:
        """Refuse a caller that has not signed correctly, or lacks the permission.

        Raises:
            ApiError: the caller is refused, with the service's wording.
        """
        self._gate.check(environ, body, signed, now=time.time())
        if (signed.get("Version"), signed.get("Action")) != (VERSION, action):
            raise ApiError("InvalidAction.NotFound", f"The path is that of {action}.", status=404)
        right, resource = f"fc:{action}", f"acs:fc:*:{ACCOUNT_ID}:functions/{name or '*'}"
        if right in self._faults.denied or not self._is_granted(signed["AccessKeyId"], right, resource):
            text = f"the caller is not authorized to perform '{right}' on resource '{resource}'"
            raise ApiError("AccessDenied", text, status=403)
        injected = self._faults.take(action)
        if injected is not None:
            raise ApiError(injected.code, injected.message, status=injected.status)

    def _act(
        self, action: str, request: dict[str, Any], *, function: str = "", trigger: str = ""
    ) -> dict[str, Any] | None:
        if action == "CreateFunction":
            return self._create(request)
        existing = self._find(function)
        if action == "GetFunction":
            return existing.describe(self.clock())
        if action == "UpdateFunction":
            self._check(request)
            code = request.pop("code", None)
            existing.settings |= request
            existing.archive = existing.archive if code is None else archive_of(code)
            existing.changed_at, existing.is_new = self.clock(), False
            return existing.describe(self.clock())
        if action == "DeleteFunction":
            if existing.triggers:
                raise ApiError("FunctionNotEmpty", "The function has triggers.", status=412)
            del self.functions[function]
            return None
        if action == "PutAsyncInvokeConfig":
            if not 0 <= request["maxAsyncRetryAttempts"] <= 8:
                raise ApiError("InvalidArgument", "maxAsyncRetryAttempts must be 0 to 8")
            existing.retries = request["maxAsyncRetryAttempts"]
            return request
        return self._act_on_trigger(action, request, existing, trigger)

    def _act_on_trigger(
        self, action: str, request: dict[str, Any], function: Function, name: str
    ) -> dict[str, Any] | None:
        triggers = function.triggers
        if action == "ListTriggers":
            return {"triggers": [one.describe() for one in triggers.values()]}
        if action == "CreateTrigger":
            name, kind = request.get("triggerName", ""), request.get("triggerType", "")
            if NAME.fullmatch(name) is None:
                raise ApiError("InvalidArgument", f"trigger name {name!r} is invalid")
            if name in triggers:
                raise ApiError("TriggerAlreadyExists", f"trigger '{name}' already exists", status=409)
            triggers[name] = Trigger(name, kind, config_of(kind, request["triggerConfig"]))
            return triggers[name].describe()
        if name not in triggers:
            raise ApiError("TriggerNotFound", f"trigger '{name}' does not exist", status=404)
        if action == "UpdateTrigger":
            triggers[name].config = config_of(triggers[name].type, request["triggerConfig"])
        found = triggers[name].describe()
        if action == "DeleteTrigger":
            del triggers[name]
            return None
        return found

    def _create(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request.pop("functionName", "")
        if request.pop("tags", []):  # The SDK always sends a list.
            raise ApiError("SandboxNotImplemented", "the emulated Function Compute has no tags")
        if NAME.fullmatch(name) is None:
            raise ApiError("InvalidArgument", f"function name {name!r} is invalid")
        if name in self.functions:
            raise ApiError("FunctionAlreadyExists", f"function '{name}' already exists", status=409)
        missing = {*SETTINGS} - {*request}
        if missing:
            raise ApiError("SandboxNotImplemented", f"name {min(missing)}: its default is not emulated")
        self._check(request)
        archive = archive_of(request.pop("code"))
        made = Function(name, "cn-hangzhou", request, archive, self.clock())
        self.functions[name] = made
        return made.describe(self.clock())

    def _check(self, settings: Mapping[str, Any]) -> None:
        check_settings(settings)
        if "role" in settings:
            self._check_role(str(settings["role"]))

    def _check_role(self, arn: str) -> None:
        match = _ROLE.fullmatch(arn)
        trusts = None if match is None else self._account.roles.get(match[1])
        is_new = self.clock() - self._known_roles.setdefault(arn, self.clock()) < NEW_SECONDS
        if trusts != "fc.aliyuncs.com" or is_new:
            raise ApiError("InvalidArgument", f"Function Compute cannot assume the role {arn}")

    def _find(self, name: str) -> Function:
        if name not in self.functions:
            raise ApiError("FunctionNotFound", f"function '{name}' does not exist", status=404)
        return self.functions[name]

    # --- running ----------------------------------------------------------------------------------

    def invoke(self, name: str, event: bytes) -> Result:
        """Run the function until it returns.

        Raises:
            ApiError: the function does not exist, or it is not ready.
        """
        with self._lock:
            function = self._find(name)
            if function.describe(self.clock())["state"] != "Active":
                raise ApiError("FunctionNotReady", f"function '{name}' is Pending", status=429)
            self._check_role(str(function.settings["role"]))
            role = str(function.settings["role"]).rpartition("/")[2]
            # Each deployment has instances of its own.
            version, code = (name, function.changed_at), self._code(function)
        key = self._issue(role)
        with self._processes.one(version, lambda: CustomRuntime(code, key, self._directory)) as one:
            return one.invoke(event, key, randomness.token_hex(16))

    def run_due(self) -> None:
        """Run the functions that are due, each in its own thread, so that a late pass delays no other."""
        now = self.clock()
        with self._lock:
            timers = [(one.name, each) for one in self.functions.values() for each in one.triggers.values()]
        for function, timer in timers:
            match = EVERY.fullmatch(str(timer.config.get("cronExpression")))
            if timer.type != "timer" or match is None or not timer.config["enable"]:
                continue
            key = (function, timer.name, match[0])
            # The first run is one interval after the timer was made.
            if now >= self._due.setdefault(key, now + 60.0 * int(match[1])):
                self._due[key] = now + 60.0 * int(match[1])
                at = datetime.fromtimestamp(now, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
                event = {
                    "triggerTime": at,
                    "triggerName": timer.name,
                    "payload": timer.config.get("payload", ""),
                }
                self._start(function, json.dumps(event).encode())

    def publish(self, type_: str, data: Mapping[str, Any]) -> None:
        """Publish an ECS event on the default bus, and run the functions that are triggered by it."""
        event = {
            "id": randomness.token_hex(16),
            "source": "acs.ecs",
            "specversion": "1.0",
            "type": type_,
            "datacontenttype": "application/json;charset=utf-8",
            "subject": f"acs:ecs:cn-hangzhou:{ACCOUNT_ID}:instance/{data.get('instanceId', '')}",
            "time": datetime.fromtimestamp(self.clock(), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "aliyunaccountid": ACCOUNT_ID,
            "aliyunregionid": "cn-hangzhou",
            "aliyuneventbusname": "default",
            "data": dict(data),
        }
        with self._lock:
            rules = [(one.name, each) for one in self.functions.values() for each in one.triggers.values()]
        for function, rule in rules:
            if rule.type == "eventbridge" and rule.config.get("triggerEnable", True):
                pattern = json.loads(rule.config["eventRuleFilterPattern"])
                if all(event.get(name) in allowed for name, allowed in pattern.items()):
                    self._start(function, json.dumps(event).encode())

    def kill_running(self) -> None:
        """Kill the functions that are running."""
        self._processes.kill_running()

    def close(self) -> None:
        """End all processes."""
        self._processes.close()

    def _start(self, function: str, event: bytes) -> None:
        log = self._directory / "functions.log"
        run_apart(function, lambda: self.invoke(function, event), log=log, refusal=ApiError)

    def _code(self, function: Function) -> Code:
        settings = function.settings
        return Code(
            name=function.name,
            archive=function.archive,
            handler=str(settings["handler"]),
            command=settings["customRuntimeConfig"]["command"],
            timeout_seconds=float(settings["timeout"]),
            memory_mib=int(settings["memorySize"]),
            region=function.region,
            account=ACCOUNT_ID,
            environment={**settings["environmentVariables"], **self._environment},
        )
