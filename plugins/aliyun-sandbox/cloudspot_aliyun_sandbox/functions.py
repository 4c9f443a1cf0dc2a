"""Function Compute 3.0 and its triggers: functions are checked, kept, and really run.

Timers run them, and so does EventBridge when ECS takes a spot machine. Source: Function Compute API reference,
version 2023-03-30, and the fields of its SDK; "Limits", "Custom runtimes", "Timer triggers", "Configure event
triggers for Alibaba Cloud services"; ECS, "Instance event notifications" (checked 2026-11). From memory: the codes
and words of refusals, that a function with triggers cannot be deleted, and that a role takes a while to be known.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import re
import secrets as randomness
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastcrc import crc64

from cloudspot.emulation.api_faults import Call, Faults
from cloudspot.emulation.role_credentials import Credentials, RoleKeys
from cloudspot_aliyun_sandbox.account import ACCOUNT_ID, Account
from cloudspot_aliyun_sandbox.fc_runtime import Code, CustomRuntime, Result
from cloudspot_aliyun_sandbox.rpc import ApiError, Gate, error_body, read_parameters

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

VERSION: Final = "2023-03-30"
MAX_REQUEST_BYTES: Final = 100 << 20
NEW_SECONDS: Final = 5.0
"""How long a new role is unknown here; nobody says how long it takes."""
PENDING_SECONDS: Final = 1.0
"""How long a new or changed function is not yet ready."""
RUNTIMES: Final[Mapping[str, frozenset[str]]] = {
    "custom.debian10": frozenset({"python3.10"}),
    "custom.debian11": frozenset({"python3.12"}),
    "custom.debian12": frozenset({"python3.11", "python3.12"}),
}
"""The Pythons of each; others are not emulated."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_EVERY: Final = re.compile(r"@every ([1-9]\d*)m")
_ROLE: Final = re.compile(rf"acs:ram::{ACCOUNT_ID}:role/([\w.-]+)")
_FUNCTION: Final = r"/functions/(?P<function>[^/]+)"
_ROUTES: Final = tuple(
    (method, re.compile(f"/{VERSION}{path}"), action)
    for method, path, action in (
        ("POST", "/functions", "CreateFunction"),
        ("GET", _FUNCTION, "GetFunction"),
        ("PUT", _FUNCTION, "UpdateFunction"),
        ("DELETE", _FUNCTION, "DeleteFunction"),
        ("PUT", f"{_FUNCTION}/async-invoke-config", "PutAsyncInvokeConfig"),
        ("POST", f"{_FUNCTION}/invocations", "InvokeFunction"),
        ("POST", f"{_FUNCTION}/triggers", "CreateTrigger"),
        ("GET", f"{_FUNCTION}/triggers", "ListTriggers"),
        ("GET", f"{_FUNCTION}/triggers/(?P<trigger>[^/]+)", "GetTrigger"),
        ("PUT", f"{_FUNCTION}/triggers/(?P<trigger>[^/]+)", "UpdateTrigger"),
        ("DELETE", f"{_FUNCTION}/triggers/(?P<trigger>[^/]+)", "DeleteTrigger"),
    )
)
_SETTINGS: Final[Mapping[str, type | tuple[type, ...]]] = {
    "code": dict,
    "cpu": (int, float),
    "customRuntimeConfig": dict,
    "description": str,
    "diskSize": int,
    "environmentVariables": dict,
    "handler": str,
    "instanceConcurrency": int,
    "memorySize": int,
    "role": str,
    "runtime": str,
    "timeout": int,
}
"""The fields of a function that are emulated; those that it has beside them are refused."""
_FIELDS: Final[Mapping[str, Mapping[str, type | tuple[type, ...]]]] = {
    "CreateFunction": {"functionName": str, **_SETTINGS},
    "UpdateFunction": _SETTINGS,
    "PutAsyncInvokeConfig": {"maxAsyncRetryAttempts": int},
    "CreateTrigger": {"triggerName": str, "triggerType": str, "triggerConfig": str},
    "UpdateTrigger": {"triggerConfig": str},
}
_log = logging.getLogger(__name__)


@dataclass
class Trigger:
    """What runs a function."""

    name: str
    type: str
    config: dict[str, Any]

    def describe(self) -> dict[str, str]:
        """Return it as GetTrigger shows it."""
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
        """Return it as GetFunction shows it."""
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
    """WSGI middleware: the functions of one account, and what runs them. Thread-safe."""

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
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Run functions below ``directory``; what is not for them reaches ``app`` unchanged.

        ``is_granted`` says whether a key has a right on a resource; ``issue`` makes a key of a role.
        ``environment`` leads every function to this cloud.
        """
        self._app = app
        self._account = account
        self._faults = faults
        self._gate = Gate(secrets, roles)
        self._is_granted = is_granted
        self._issue = issue
        self._environment = environment
        self._directory = directory
        self.clock = clock
        self._lock = threading.Lock()
        self.functions: dict[str, Function] = {}
        self._idle: dict[tuple[str, float], list[CustomRuntime]] = {}
        self._running: set[CustomRuntime] = set()
        self._due: dict[tuple[str, str, str], float] = {}
        """When each timer runs next, by its function, its name and its rate."""
        self._known_roles: dict[str, float] = {}
        """When each was first named here."""

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
            action, names = _route(environ)
            signed = read_parameters(environ, body)
            self._admit(environ, body, signed, action, names.get("function", ""))
            request = {} if action == "InvokeFunction" else _read(action, body)
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
        shown.pop("code", None)  # It would fill the trail.
        self._faults.record(Call("fc", action, shown, "", code, access_key=signed.get("AccessKeyId", "")))
        headers += [("X-Fc-Request-Id", randomness.token_hex(16)), ("Content-Length", str(len(content)))]
        start_response(f"{status} {'OK' if status < 400 else 'Error'}", headers)
        return [content]

    def _admit(
        self, environ: Mapping[str, Any], body: bytes, signed: Mapping[str, str], action: str, name: str
    ) -> None:
        """Refuse who has not signed correctly, or lacks the right.

        Raises:
            ApiError: as the service words it.
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
        found = self._find(function)
        if action == "GetFunction":
            return found.describe(self.clock())
        if action == "UpdateFunction":
            self._check(request)
            code = request.pop("code", None)
            found.settings |= request
            found.archive = found.archive if code is None else _archive(code)
            found.changed_at, found.is_new = self.clock(), False
            return found.describe(self.clock())
        if action == "DeleteFunction":
            if found.triggers:
                raise ApiError("FunctionNotEmpty", "The function has triggers.", status=412)
            del self.functions[function]
            return None
        if action == "PutAsyncInvokeConfig":
            if not 0 <= request["maxAsyncRetryAttempts"] <= 8:
                raise ApiError("InvalidArgument", "maxAsyncRetryAttempts must be 0 to 8")
            found.retries = request["maxAsyncRetryAttempts"]
            return request
        return self._act_on_trigger(action, request, found, trigger)

    def _act_on_trigger(
        self, action: str, request: dict[str, Any], function: Function, name: str
    ) -> dict[str, Any] | None:
        triggers = function.triggers
        if action == "ListTriggers":
            return {"triggers": [one.describe() for one in triggers.values()]}
        if action == "CreateTrigger":
            name, kind = request.get("triggerName", ""), request.get("triggerType", "")
            if _NAME.fullmatch(name) is None:
                raise ApiError("InvalidArgument", f"trigger name {name!r} is invalid")
            if name in triggers:
                raise ApiError("TriggerAlreadyExists", f"trigger '{name}' already exists", status=409)
            triggers[name] = Trigger(name, kind, _config(kind, request["triggerConfig"]))
            return triggers[name].describe()
        if name not in triggers:
            raise ApiError("TriggerNotFound", f"trigger '{name}' does not exist", status=404)
        if action == "UpdateTrigger":
            triggers[name].config = _config(triggers[name].type, request["triggerConfig"])
        found = triggers[name].describe()
        if action == "DeleteTrigger":
            del triggers[name]
            return None
        return found

    def _create(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request.pop("functionName", "")
        if _NAME.fullmatch(name) is None:
            raise ApiError("InvalidArgument", f"function name {name!r} is invalid")
        if name in self.functions:
            raise ApiError("FunctionAlreadyExists", f"function '{name}' already exists", status=409)
        missing = {*_SETTINGS} - {*request}
        if missing:
            raise ApiError("SandboxNotImplemented", f"name {min(missing)}: its default is not emulated")
        self._check(request)
        archive = _archive(request.pop("code"))
        made = Function(name, "cn-hangzhou", request, archive, self.clock())
        self.functions[name] = made
        return made.describe(self.clock())

    def _check(self, settings: Mapping[str, Any]) -> None:
        """Refuse values that the service refuses.

        Raises:
            ApiError: 400.
        """
        memory, cpu = settings.get("memorySize", 512), settings.get("cpu", 0.5)
        if memory % 64 or not 128 <= memory <= 32 << 10:
            raise ApiError("InvalidArgument", f"memorySize {memory} is invalid")
        if round(cpu * 100) % 5 or not 0.05 <= cpu <= 16 or not 1 <= memory / 1024 / cpu <= 4:
            raise ApiError("InvalidArgument", f"cpu {cpu} does not go with {memory} MB")
        if settings.get("diskSize", 512) not in {512, 10240}:
            raise ApiError("InvalidArgument", "diskSize must be 512 or 10240")
        if not 1 <= settings.get("timeout", 1) <= 86400:
            raise ApiError("InvalidArgument", "timeout must be 1 to 86400")
        variables = settings.get("environmentVariables", {})
        if sum(len(name) + len(value) for name, value in variables.items()) > 4096:
            raise ApiError("InvalidArgument", "the environment variables have more than 4 KB")
        if any(name.startswith("FC_") or not name[:1].isalpha() for name in variables):
            raise ApiError("InvalidArgument", "an environment variable has a reserved name")
        if "runtime" in settings or "customRuntimeConfig" in settings:
            _check_runtime(
                str(settings.get("runtime", "custom.debian12")), settings.get("customRuntimeConfig")
            )
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
        """Run the function to its end.

        Raises:
            ApiError: there is no such function, or it is not ready.
        """
        with self._lock:
            function = self._find(name)
            if function.describe(self.clock())["state"] != "Active":
                raise ApiError("FunctionNotReady", f"function '{name}' is Pending", status=429)
            self._check_role(str(function.settings["role"]))
            role = str(function.settings["role"]).rpartition("/")[2]
            # What was deployed last has instances of its own.
            waiting = self._idle.setdefault((name, function.changed_at), [])
            runtime = waiting.pop() if waiting else None
            code = self._code(function)
        key = self._issue(role)
        if runtime is None or not runtime.is_alive:
            runtime = CustomRuntime(code, key, self._directory)
        with self._lock:
            self._running.add(runtime)
        try:
            return runtime.invoke(event, key, randomness.token_hex(16))
        finally:
            with self._lock:
                self._running.discard(runtime)
                if runtime.is_alive:
                    waiting.append(runtime)

    def run_due(self) -> None:
        """Run what the timers say; each in a thread of its own, as a late pass does not delay the next."""
        now = self.clock()
        with self._lock:
            timers = [(one.name, each) for one in self.functions.values() for each in one.triggers.values()]
        for function, timer in timers:
            match = _EVERY.fullmatch(str(timer.config.get("cronExpression")))
            if timer.type != "timer" or match is None or not timer.config["enable"]:
                continue
            key = (function, timer.name, match[0])
            # The first time is one interval after it was made.
            if now >= self._due.setdefault(key, now + 60.0 * int(match[1])):
                self._due[key] = now + 60.0 * int(match[1])
                at = datetime.fromtimestamp(now, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
                event = {
                    "triggerTime": at,
                    "triggerName": timer.name,
                    "payload": timer.config.get("payload", ""),
                }
                self._start(function, json.dumps(event).encode())

    def tell(self, type_: str, data: Mapping[str, Any]) -> None:
        """Publish an event of ECS on the default bus, and run what waits for such."""
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

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            for runtime in [*self._running, *(one for ones in self._idle.values() for one in ones)]:
                runtime.close()
            self._idle.clear()

    def _start(self, function: str, event: bytes) -> None:
        arguments = (function, event)
        threading.Thread(target=self._run, args=arguments, name="function", daemon=True).start()

    def _run(self, function: str, event: bytes) -> None:
        try:
            result = self.invoke(function, event)
        except ApiError as error:
            _log.warning("function %s: %s", function, error)
            return
        with (self._directory / "functions.log").open("a", encoding="utf-8") as log:
            log.write(f"{result.log}{result.payload.decode('utf-8', 'replace')}\n")

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


def _route(environ: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    for method, pattern, action in _ROUTES:
        match = pattern.fullmatch(str(environ["PATH_INFO"]))
        if match is not None and method == environ["REQUEST_METHOD"]:
            return action, match.groupdict()
    raise ApiError("SandboxNotImplemented", f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}", status=404)


def _read(action: str, body: bytes) -> dict[str, Any]:
    """Return a request's fields: all of them known, and of their types."""
    if len(body) > MAX_REQUEST_BYTES:
        text = f"payload size exceeds maximum allowed size ({MAX_REQUEST_BYTES} bytes)"
        raise ApiError("InvalidArgument", text)
    try:
        found = json.loads(body or b"{}")
    except ValueError:
        raise ApiError("InvalidArgument", "the body is not JSON") from None
    known = _FIELDS.get(action, {})
    for name, value in found.items():
        if name not in known or not isinstance(value, known[name]) or isinstance(value, bool):
            raise ApiError(
                "InvalidArgument", f"{action} has no field {name} that holds {type(value).__name__}"
            )
    return dict(found)


def _check_runtime(runtime: str, custom: Mapping[str, Any] | None) -> None:
    command = (custom or {}).get("command") or [""]
    if runtime not in RUNTIMES or command[0] not in RUNTIMES[runtime]:
        raise ApiError("InvalidArgument", f"runtime {runtime} has no {command[0]}")
    here = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    if command[0] != here or (custom or {}).get("port") != 9000:
        raise ApiError("SandboxNotImplemented", f"the sandbox runs {here} that listens on 9000 only")


def _archive(code: Mapping[str, Any]) -> bytes:
    """Return the zip that the request holds.

    Raises:
        ApiError: it is none, or another than its checksum says.
    """
    try:
        archive = base64.b64decode(code["zipFile"], validate=True)
        with zipfile.ZipFile(io.BytesIO(archive)) as packed:
            packed.infolist()
    except (KeyError, ValueError, zipfile.BadZipFile):
        raise ApiError("InvalidArgument", "code.zipFile is no zip in base64") from None
    if code.get("checksum", str(crc64.xz(archive))) != str(crc64.xz(archive)):
        raise ApiError("InvalidArgument", "the checksum of the code is another")
    return archive


def _config(kind: str, text: str) -> dict[str, Any]:
    """Return a trigger's configuration.

    Raises:
        ApiError: the service refuses it, or it is not emulated.
    """
    try:
        config = dict(json.loads(text))
        if kind == "timer":
            is_good = _EVERY.fullmatch(config["cronExpression"]) is not None
            known = {"cronExpression": str, "enable": bool, "payload": str}
        elif kind == "eventbridge":
            pattern = json.loads(config["eventRuleFilterPattern"])
            is_good = all(isinstance(one, list) for one in pattern.values())
            is_good = is_good and config["eventSourceConfig"] == {"eventSourceType": "Default"}
            known = {"triggerEnable": bool, "eventRuleFilterPattern": str, "eventSourceConfig": dict}
        else:
            raise ApiError("SandboxNotImplemented", f"triggers of type {kind} are not emulated")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ApiError("InvalidArgument", "triggerConfig is invalid") from None
    if not is_good or any(name not in known or type(one) is not known[name] for name, one in config.items()):
        raise ApiError("InvalidArgument", "triggerConfig is invalid")
    return config
