"""Parses EC2's query protocol, and refuses parameters that the real API does not have."""

from __future__ import annotations

import base64
import binascii
import io
import re
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

import botocore.session

API_VERSION = "2016-11-15"
_REQUEST_ID = "59dbff89-35bd-4eac-99ed-be5870000000"
_XMLNS = f"http://ec2.amazonaws.com/doc/{API_VERSION}/"
_SCOPE = re.compile(r"Credential=([^/,\s]+)/\d{8}/([a-z0-9-]+)/([a-z0-9-]+)/aws4_request")


class ApiError(Exception):
    """An error response, worded as by the real API."""

    def __init__(self, code: str, message: str, *, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


def read_body(environ: dict[str, Any]) -> bytes:
    """Return the request's body, and leave it readable for the next application."""
    body: bytes = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = io.BytesIO(body)
    return body


def scope_of(environ: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Return the (access key, region, service) that signed the request, or None if it is unsigned."""
    match = _SCOPE.search(str(environ.get("HTTP_AUTHORIZATION", "")))
    return None if match is None else (match[1], match[2], match[3])


def parse_form(body: bytes) -> dict[str, str]:
    """Return the form's fields by name."""
    return dict(parse_qsl(body.decode("utf-8"), keep_blank_values=True))


def parse_parameters(action: str, form: Mapping[str, str]) -> dict[str, Any]:
    """Return the call's parameters with boto3's names, nesting and types.

    Raises:
        ApiError: the action, a parameter or an enumerated value is unknown, or a parameter is missing.
    """
    service = ec2_model()
    if action not in service.operation_names:
        raise ApiError("InvalidAction", f"The action {action} is not valid for this web service.")
    shape = service.operation_model(action).input_shape
    tree: dict[str, Any] = {}
    for name, value in form.items():
        if name in {"Action", "Version"}:
            continue
        node = tree
        *path, last = name.split(".")
        for step in path:
            node = node.setdefault(step, {})
            if not isinstance(node, dict):
                raise ApiError("UnknownParameter", f"The parameter {name} is not recognized")
        node[last] = value
    parameters = {} if shape is None else _convert(shape, tree, "")
    assert isinstance(parameters, dict)
    return parameters


@cache
def ec2_model() -> Any:
    """Return botocore's description of the EC2 API."""
    return botocore.session.get_session().get_service_model("ec2")


def _convert(shape: Any, node: Any, path: str) -> Any:
    if shape.type_name == "structure":
        return _convert_structure(shape, node, path)
    if shape.type_name == "list":
        if not isinstance(node, dict) or not all(key.isdigit() for key in node):
            raise ApiError("UnknownParameter", f"The parameter {path} is not recognized")
        return [_convert(shape.member, node[key], f"{path}.{key}") for key in sorted(node, key=int)]
    if not isinstance(node, str):
        raise ApiError("UnknownParameter", f"The parameter {path}.{next(iter(node))} is not recognized")
    return _convert_scalar(shape, node, path)


def _convert_structure(shape: Any, node: Any, path: str) -> dict[str, Any]:
    if not isinstance(node, dict):
        raise ApiError("UnknownParameter", f"The parameter {path} is not recognized")
    members = {_serialized(member, name): (name, member) for name, member in shape.members.items()}
    result = {}
    for key, item in node.items():
        where = f"{path}.{key}" if path else key
        if key not in members:
            raise ApiError("UnknownParameter", f"The parameter {where} is not recognized")
        name, member = members[key]
        result[name] = _convert(member, item, where)
    for name in shape.required_members:
        if name not in result:
            where = f"{path}.{name}" if path else name
            raise ApiError("MissingParameter", f"The request must contain the parameter {where}")
    return result


def _convert_scalar(shape: Any, text: str, path: str) -> Any:
    wrong = ApiError("InvalidParameterValue", f"Invalid value '{text}' for {path}")
    if shape.type_name == "boolean":
        if text.lower() not in {"true", "false"}:
            raise wrong
        return text.lower() == "true"
    if shape.type_name in {"integer", "long"}:
        if not re.fullmatch(r"-?\d+", text):
            raise wrong
        return int(text)
    if shape.type_name in {"float", "double"}:
        try:
            return float(text)
        except ValueError:
            raise wrong from None
    if shape.type_name == "blob":
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error:
            raise wrong from None
    # An instance type may be newer than this botocore; each action itself refuses a type that does not exist.
    is_open = shape.name == "InstanceType"
    if (
        shape.type_name == "string"
        and getattr(shape, "enum", None)
        and text not in shape.enum
        and not is_open
    ):
        raise wrong
    return text


def _serialized(member: Any, name: str) -> str:
    """Return the member's name in requests and responses (botocore's EC2Serializer does the same)."""
    if "queryName" in member.serialization:
        return str(member.serialization["queryName"])
    if "name" in member.serialization:
        wire = str(member.serialization["name"])
        return wire[0].upper() + wire[1:]
    return name


def xml_answer(action: str, value: Mapping[str, Any]) -> bytes:
    """Return the response to an action in XML; ``value`` has boto3's names and nesting."""
    shape = ec2_model().operation_model(action).output_shape
    inner = "" if shape is None else _members(shape, value)
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<{action}Response xmlns="{_XMLNS}">'
        f"<requestId>{_REQUEST_ID}</requestId>{inner}</{action}Response>"
    ).encode()


def xml_error(error: ApiError) -> bytes:
    """Return the error in the form of EC2's responses."""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<Response><Errors><Error>'
        f"<Code>{escape(error.code)}</Code><Message>{escape(error.message)}</Message></Error></Errors>"
        f"<RequestID>{_REQUEST_ID}</RequestID></Response>"
    ).encode()


def _members(shape: Any, value: Mapping[str, Any]) -> str:
    return "".join(
        _element(member.serialization.get("name", name), member, value[name])
        for name, member in shape.members.items()
        if value.get(name) is not None
    )


def _element(tag: str, shape: Any, value: Any) -> str:
    if shape.type_name == "structure":
        inner = _members(shape, value)
    elif shape.type_name == "list":
        item = shape.member.serialization.get("name", "item")
        inner = "".join(_element(item, shape.member, one) for one in value)
    elif isinstance(value, bool):
        inner = str(value).lower()
    elif isinstance(value, datetime):
        inner = f"{value:%Y-%m-%dT%H:%M:%S}.000Z"
    else:
        inner = escape(str(value))
    return f"<{tag}>{inner}</{tag}>"
