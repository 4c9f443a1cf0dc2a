"""Parses requests in the RPC style of Alibaba Cloud's control plane; verifies signatures and parameters.

A request is signed with version 2 (in its parameters) or with version 3 (in headers: see acs3.py). Sources:
ECS developer reference, "Request syntax and signature method V2 for RPC APIs", "Common error codes"; the
SDK's own request classes, which name every parameter (checked 2026-11). The HTTP status of some common errors
is from memory.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import importlib
import inspect
import json
import re
import secrets
from collections.abc import Collection, Mapping
from datetime import datetime, timezone
from typing import Any, Final
from urllib.parse import parse_qsl, quote

from cloudspot.emulation.role_credentials import RoleKeys
from cloudspot_aliyun_sandbox import acs3

MAX_SKEW_SECONDS: Final = 15 * 60.0
VERSIONS: Final = {
    "2014-05-26": "Ecs",
    "2015-04-01": "Sts",
    "2015-05-01": "Ram",
    "2016-04-28": "Vpc",
    "2018-12-01": "cr",
}
COMMON: Final = frozenset(
    {
        "AccessKeyId",
        "Action",
        "Format",
        "RegionId",
        "SecurityToken",
        "Signature",
        "SignatureMethod",
        "SignatureNonce",
        "SignatureType",
        "SignatureVersion",
        "Timestamp",
        "Version",
    }
)
_REQUIRED: Final = (
    "AccessKeyId",
    "Signature",
    "SignatureMethod",
    "SignatureNonce",
    "SignatureVersion",
    "Timestamp",
)
_OTHERS: Final[Mapping[str, frozenset[str]]] = {
    **{
        f"Ram:{verb}{kind}": frozenset({"PolicyName", "PolicyType", f"{kind}Name"})
        for kind in ("Group", "User")
        for verb in ("AttachPolicyTo", "DetachPolicyFrom")
    },
    **{
        f"Ram:{verb}{kind}": frozenset({f"{kind}Name"})
        for kind in ("Group", "User")
        for verb in ("Create", "Get", "ListPoliciesFor")
    },
    "Ram:CreateAccessKey": frozenset({"UserName"}),
    "Ram:ListPoliciesForRole": frozenset({"RoleName"}),
    "Ram:AttachPolicyToRole": frozenset({"PolicyName", "PolicyType", "RoleName"}),
    "Ram:CreatePolicy": frozenset({"Description", "PolicyDocument", "PolicyName"}),
    "Ram:CreatePolicyVersion": frozenset({"PolicyDocument", "PolicyName", "RotateStrategy", "SetAsDefault"}),
    "Ram:CreateRole": frozenset({"AssumeRolePolicyDocument", "Description", "RoleName"}),
    "Ram:DeletePolicy": frozenset({"CascadingDelete", "PolicyName"}),
    "Ram:DeleteRole": frozenset({"RoleName"}),
    "Ram:DetachPolicyFromRole": frozenset({"PolicyName", "PolicyType", "RoleName"}),
    "Ram:GetPolicy": frozenset({"PolicyName", "PolicyType"}),
    "cr:GetAuthorizationToken": frozenset({"InstanceId"}),
    "Sts:GetCallerIdentity": frozenset(),
    "Ram:GetRole": frozenset({"RoleName"}),
    "cr:ListInstance": frozenset({"InstanceName", "InstanceStatus", "PageNo", "PageSize"}),
    "Vpc:CreateDefaultVSwitch": frozenset({"ZoneId"}),
    "Vpc:CreateDefaultVpc": frozenset(),
    "Vpc:DescribeVSwitches": frozenset(
        {"IsDefault", "PageNumber", "PageSize", "Tag.N.Key", "Tag.N.Value", "VSwitchId", "VpcId", "ZoneId"}
    ),
}
"""The parameters of those actions of other products that a plugin or docs/aliyun.md uses.

Sources: the API references of VPC, RAM, STS and Container Registry.
"""
_SETTER: Final = re.compile(r"def set_\w+\(self, \w+\):\s*#\s*(\w+)\n(.*?)(?=\n\s*def |\Z)", re.DOTALL)
_NAME: Final = re.compile(r"add_(?:query_param|body_params)\((.+?), [\w\[\]().']+\)")
_SIMPLE: Final = {
    "Integer": re.compile(r"-?\d{1,10}"),
    "Long": re.compile(r"-?\d{1,19}"),
    "Float": re.compile(r"-?\d+(?:\.\d+)?"),
    "Boolean": re.compile(r"true|false|True|False"),
}


class ApiError(Exception):
    """A refusal of the control plane."""

    def __init__(self, code: str, message: str, *, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


def read_parameters(environ: Mapping[str, Any], body: bytes) -> dict[str, str]:
    """Return all parameters of a request, from its query and its body.

    Raises:
        ApiError: a parameter is given twice.
    """
    pairs = parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True)
    if str(environ.get("CONTENT_TYPE", "")).startswith("application/x-www-form-urlencoded"):
        pairs += parse_qsl(body.decode(), keep_blank_values=True)
    if acs3.is_acs3(environ):
        pairs += _parameters_in_headers(acs3.read(environ, body))
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ApiError("InvalidParameter", "A parameter is given twice.")
    return found


def _parameters_in_headers(signed: acs3.Signed | None) -> list[tuple[str, str]]:
    """Return the headers of version 3 in the form of version 2's parameters."""
    if signed is None:
        raise ApiError("IncompleteSignature", "The Authorization header cannot be read.")
    parameters = [("AccessKeyId", signed.key)]
    for name, header in (
        ("Action", "x-acs-action"),
        ("SecurityToken", "x-acs-security-token"),
        ("SignatureNonce", "x-acs-signature-nonce"),
        ("Timestamp", "x-acs-date"),
        ("Version", "x-acs-version"),
    ):
        if signed.headers.get(header):
            parameters.append((name, signed.headers[header]))
    return parameters


class Gate:
    """Checks requests' signatures, and remembers the nonces that have been used."""

    def __init__(self, keys: Mapping[str, str], roles: RoleKeys | None) -> None:
        self._keys = keys
        self._roles = roles
        self._nonces: set[str] = set()

    def check(
        self, environ: Mapping[str, Any], body: bytes, parameters: Mapping[str, str], *, now: float
    ) -> None:
        """Refuse a request that is not signed correctly.

        Raises:
            ApiError: the request is refused, with the real service's wording.
        """
        signed = acs3.read(environ, body) if acs3.is_acs3(environ) else None
        for name in _REQUIRED if signed is None else ("SignatureNonce", "Timestamp"):
            if not parameters.get(name):
                raise ApiError(f"Missing{name}", f"{name} is mandatory for this action.")
        if signed is None:
            if parameters["SignatureMethod"] != "HMAC-SHA1" or parameters["SignatureVersion"] != "1.0":
                raise ApiError("InvalidParameter", "Specified signature method is not valid.")
        elif signed.unsigned or not signed.is_body_as_signed:
            what = f"header {signed.unsigned[0]} is not signed" if signed.unsigned else "body is another"
            raise ApiError("IncompleteSignature", f"The request's {what}.")
        try:
            at = datetime.strptime(parameters["Timestamp"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
        except ValueError:
            raise ApiError("InvalidTimeStamp.Format", "Specified time stamp is not well formatted.") from None
        if abs(at.timestamp() - now) > MAX_SKEW_SECONDS:
            raise ApiError("InvalidTimeStamp.Expired", "Specified time stamp or date value is expired.")
        key = parameters["AccessKeyId"]
        secret = self._keys.get(key)
        if secret is None:
            raise ApiError("InvalidAccessKeyId.NotFound", "Specified access key is not found.", status=404)
        self._check_token(key, parameters.get("SecurityToken"), now)
        if signed is None:
            text = string_to_sign(str(environ["REQUEST_METHOD"]), parameters)
            expected, given = sign(text, secret), parameters["Signature"]
        else:
            text = signed.text
            expected, given = acs3.sign(text, secret), signed.signature
        if not hmac.compare_digest(expected, given):
            raise ApiError(
                "SignatureDoesNotMatch",
                f"Specified signature is not matched with our calculation. server string to sign is:{text}",
            )
        nonce = f"{key} {parameters['SignatureNonce']}"
        if nonce in self._nonces:
            raise ApiError("SignatureNonceUsed", "Specified signature nonce was used already.")
        self._nonces.add(nonce)

    def _check_token(self, key: str, token: str | None, now: float) -> None:
        if self._roles is None or not self._roles.is_role_key(key):
            if token:
                raise ApiError(
                    "InvalidSecurityToken.MismatchWithAccessKey", "The key needs no security token."
                )
            return
        if not token:
            raise ApiError("MissingSecurityToken", "SecurityToken is mandatory for this action.")
        if token != self._roles.token_of(key):
            raise ApiError("InvalidSecurityToken.Malformed", "Specified SecurityToken is malformed.")
        if self._roles.expires_at(key).timestamp() <= now:
            raise ApiError("InvalidSecurityToken.Expired", "Specified SecurityToken is expired.")


def string_to_sign(method: str, parameters: Mapping[str, str]) -> str:
    """Return the text of a request that is signed."""
    pairs = sorted((name, value) for name, value in parameters.items() if name != "Signature")
    canonical = "&".join(f"{_quote(name)}={_quote(value)}" for name, value in pairs)
    return f"{method}&%2F&{_quote(canonical)}"


def sign(text: str, secret: str) -> str:
    """Return the signature in base64."""
    return base64.b64encode(hmac.new(f"{secret}&".encode(), text.encode(), hashlib.sha1).digest()).decode()


def check_names(action: str, product: str, parameters: Mapping[str, str]) -> dict[str, str]:
    """Refuse parameters that are unknown or of a wrong type, more strictly than the real service.

    Return the parameters, with booleans in lower case: the second generation's Python SDK writes ``True``.

    Raises:
        ApiError: the action does not exist, or a parameter is wrong.
    """
    other = f"{product}:{action}"
    known = _known(action) if product == "Ecs" else dict.fromkeys(_OTHERS.get(other, ()), "String")
    if known is None or (product != "Ecs" and other not in _OTHERS):
        raise ApiError("InvalidAction.NotFound", f"Specified api {action} is not found.", status=404)
    checked = dict(parameters)
    for name, value in parameters.items():
        if name in COMMON:
            continue
        kind = known.get(re.sub(r"\.\d+(?=\.|$)", ".N", name))
        if kind is None:
            raise ApiError("SandboxUnknownParameter", f"{action} has no parameter {name}")
        pattern = _SIMPLE.get(kind)
        if pattern is not None and not pattern.fullmatch(value):
            raise ApiError("InvalidParameter", f"{name} must be of type {kind}: got {value!r}")
        if kind == "Boolean":
            checked[name] = value.lower()
    return checked


def check_handled(parameters: Mapping[str, str], handled: Collection[str], *, what: str) -> None:
    """Refuse any parameter, named without its numbers, that the emulation does not handle.

    Raises:
        ApiError: there is such a parameter; the message calls it a ``what``.
    """
    unknown = {name.partition(".")[0] for name in parameters} - COMMON - set(handled)
    if unknown:
        raise ApiError(
            "SandboxNotImplemented", f"the emulated ECS does not support the {what} {min(unknown)}"
        )


def nested(parameters: Mapping[str, str], name: str) -> list[Any]:
    """Return a repeated parameter: texts of ``name.N``, or dicts of ``name.N.Part``.

    Raises:
        ApiError: the numbers do not start at 1, or have a gap.
    """
    by_number: dict[int, Any] = {}
    for key, value in parameters.items():
        match = re.fullmatch(rf"{re.escape(name)}\.(\d+)(?:\.(.+))?", key)
        if match is None:
            continue
        if match[2]:
            by_number.setdefault(int(match[1]), {})[match[2]] = value
        else:
            by_number[int(match[1])] = value
    if sorted(by_number) != list(range(1, len(by_number) + 1)):
        raise ApiError("InvalidParameter", f"{name} must be numbered from 1 without a gap")
    return [by_number[number] for number in sorted(by_number)]


def json_list(parameters: Mapping[str, str], name: str, *, most: int = 100) -> list[str] | None:
    """Return a parameter that holds a list of texts in JSON, or None if it is not given.

    Raises:
        ApiError: the value is not a list of texts, or is too long.
    """
    if name not in parameters:
        return None
    try:
        texts = json.loads(parameters[name])
    except ValueError:
        texts = None
    if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts) or len(texts) > most:
        raise ApiError("InvalidParameter", f"The specified {name} is not valid.")
    return texts


def answer_body(answer: Mapping[str, Any]) -> bytes:
    """Return a response as JSON."""
    return json.dumps({"RequestId": _request_id(), **answer}).encode()


def error_body(error: ApiError) -> bytes:
    """Return an error as JSON."""
    return json.dumps(
        {
            "RequestId": _request_id(),
            "HostId": "ecs.aliyuncs.com",
            "Code": error.code,
            "Message": error.message,
            "Recommend": "https://api.aliyun.com/troubleshoot",
        }
    ).encode()


@functools.cache
def _known(action: str) -> dict[str, str] | None:
    """Return the action's parameters with their types in the SDK, or None if the SDK has no such action."""
    try:
        module = importlib.import_module(f"aliyunsdkecs.request.v20140526.{action}Request")
    except ImportError:
        return None
    kinds: dict[str, str] = {}
    for kind, body in _SETTER.findall(inspect.getsource(module)):
        for written in _NAME.findall(body):
            name = re.sub(r"' \+ str\(depth\d \+ 1\) \+ '", "N", written)
            name = re.sub(r"' \+ str\(depth\d \+ 1\)", "N'", name)
            kinds[name.strip("'")] = "String" if "N" in name.split(".") else kind
    return kinds


def _quote(text: str) -> str:
    return quote(text, safe="-_.~")


def _request_id() -> str:
    return secrets.token_hex(16).upper()
