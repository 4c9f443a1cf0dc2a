"""Parses requests to Function Compute 3.0, and refuses invalid values.

Source: Function Compute API reference, version 2023-03-30, and the fields of its SDK; "Limits", "Custom
runtimes", "Timer triggers" (checked 2026-11). The codes and the wording of refusals are from memory.
"""

from __future__ import annotations

import base64
import io
import json
import re
import sys
import zipfile
from collections.abc import Mapping
from typing import Any, Final

from fastcrc import crc64

from cloudspot_aliyun_sandbox.rpc import ApiError

VERSION: Final = "2023-03-30"
MAX_REQUEST_BYTES: Final = 100 << 20
RUNTIMES: Final[Mapping[str, frozenset[str]]] = {
    "custom.debian10": frozenset({"python3.10"}),
    "custom.debian11": frozenset({"python3.12"}),
    "custom.debian12": frozenset({"python3.11", "python3.12"}),
}
"""The Pythons of each runtime; other runtimes are not emulated."""
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
EVERY: Final = re.compile(r"@every ([1-9]\d*)m")
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
SETTINGS: Final[Mapping[str, type | tuple[type, ...]]] = {
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
"""The emulated fields of a function; other fields are refused."""
_FIELDS: Final[Mapping[str, Mapping[str, type | tuple[type, ...]]]] = {
    "CreateFunction": {"functionName": str, "tags": list, **SETTINGS},
    "UpdateFunction": SETTINGS,
    "PutAsyncInvokeConfig": {"maxAsyncRetryAttempts": int},
    "CreateTrigger": {"triggerName": str, "triggerType": str, "triggerConfig": str},
    "UpdateTrigger": {"triggerConfig": str},
}


def route(environ: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Return the action, and the names in its path."""
    for method, pattern, action in _ROUTES:
        match = pattern.fullmatch(str(environ["PATH_INFO"]))
        if match is not None and method == environ["REQUEST_METHOD"]:
            return action, match.groupdict()
    raise ApiError("SandboxNotImplemented", f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}", status=404)


def read_fields(action: str, body: bytes) -> dict[str, Any]:
    """Return a request's fields; refuse unknown fields and wrong types."""
    if len(body) > MAX_REQUEST_BYTES:
        text = f"payload size exceeds maximum allowed size ({MAX_REQUEST_BYTES} bytes)"
        raise ApiError("InvalidArgument", text)
    try:
        fields = json.loads(body or b"{}")
    except ValueError:
        raise ApiError("InvalidArgument", "the body is not JSON") from None
    known = _FIELDS.get(action, {})
    for name, value in fields.items():
        if name not in known or not isinstance(value, known[name]) or isinstance(value, bool):
            raise ApiError(
                "InvalidArgument", f"{action} has no field {name} that holds {type(value).__name__}"
            )
    return dict(fields)


def _check_runtime(runtime: str, custom: Mapping[str, Any] | None) -> None:
    command = (custom or {}).get("command") or [""]
    if runtime not in RUNTIMES or command[0] not in RUNTIMES[runtime]:
        raise ApiError("InvalidArgument", f"runtime {runtime} has no {command[0]}")
    here = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    if command[0] != here or (custom or {}).get("port") != 9000:
        raise ApiError("SandboxNotImplemented", f"the sandbox runs {here} that listens on 9000 only")


def archive_of(code: Mapping[str, Any]) -> bytes:
    """Return the zip in the request.

    Raises:
        ApiError: the content is not a zip, or does not match its checksum.
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


def config_of(kind: str, text: str) -> dict[str, Any]:
    """Return a trigger's configuration.

    Raises:
        ApiError: the service refuses the trigger, or it is not emulated.
    """
    try:
        config = dict(json.loads(text))
        if kind == "timer":
            is_good = EVERY.fullmatch(config["cronExpression"]) is not None
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


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse settings that the real service refuses.

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
        _check_runtime(str(settings.get("runtime", "custom.debian12")), settings.get("customRuntimeConfig"))
