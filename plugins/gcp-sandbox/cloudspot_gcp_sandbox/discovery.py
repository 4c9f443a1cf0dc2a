"""Checks requests against Google's own API descriptions, which google-api-python-client bundles.

    matched = api("compute.v1").check("POST", "/compute/v1/projects/p/zones/z/instances", query, body)
    matched.method_id, matched.path, matched.query

Requests that the description does not allow are refused with the wording of Google's front end (from memory).
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import unquote

from cloudspot_gcp_sandbox.apierror import ApiError, invalid

_PARAMETER = re.compile(r"\{(\+?)(\w+)\}")
_UNDESCRIBED = {"returnPartialSuccess": {"type": "boolean", "location": "query"}}
"""Parameters that newer documents omit from many lists, but that gcloud still sends (528, of 2025)."""
_INTEGERS = {
    "int32": (-(1 << 31), (1 << 31) - 1),
    "uint32": (0, (1 << 32) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
    "uint64": (0, (1 << 64) - 1),
}


@dataclass(frozen=True)
class Matched:
    """A request, matched to its method."""

    method_id: str
    """Such as ``compute.instances.insert``."""
    path: Mapping[str, str]
    """The parameters in the path, decoded."""
    query: Mapping[str, Any] = field(default_factory=dict)
    """The parameters in the query: numbers and booleans with their types, repeated parameters as tuples."""
    is_upload: bool = False
    """Whether the request used the upload path, so that the body is content, and was not checked."""


@dataclass(frozen=True)
class _Route:
    http_method: str
    pattern: re.Pattern[str]
    num_literals: int
    method: Mapping[str, Any]
    is_upload: bool


@cache
def api(name: str) -> Api:
    """Return the API of a document such as ``compute.v1``, ``storage.v1`` or ``logging.v2``; read once."""
    documents = files("googleapiclient.discovery_cache") / "documents"
    return Api(json.loads((documents / f"{name}.json").read_text(encoding="utf-8")))


class Api:
    """One API's description. Thread-safe."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._schemas: Mapping[str, Any] = document["schemas"]
        self._required: dict[tuple[int, str], Sequence[str]] = {}
        """The required properties, by schema object and method."""
        self._common: Mapping[str, Any] = {**document.get("parameters", {}), **_UNDESCRIBED}
        self._is_proto = not document["servicePath"].startswith("storage/")
        """Whether the API's JSON is that of protocol buffers, which also accepts a field's snake_case name.
        """
        base = "/" + document["servicePath"]
        self._methods = {method["id"]: method for method in _methods(document)}
        self._routes = sorted(
            (route for method in self._methods.values() for route in _routes(base, method)),
            key=lambda route: -route.num_literals,
        )

    def check(
        self,
        http_method: str,
        path: str,
        query: Mapping[str, Sequence[str]],
        body: object = None,
    ) -> Matched:
        """Return the requested method and its parameters.

        ``path`` is the request's percent-encoded path, without the query; ``query`` is the result of
        ``parse_qs(..., keep_blank_values=True)``; ``body`` is the parsed JSON, or None without a body.

        Raises:
            ApiError: there is no such method (404), or a parameter or field is unknown, of a wrong type, or
                missing (400).
        """
        for route in self._routes:
            match = route.pattern.fullmatch(path) if route.http_method == http_method else None
            if match is not None:
                break
        else:
            raise ApiError(404, "notFound", f"The requested URL {path} was not found on this server.")
        method = route.method
        values = {name: unquote(text) for name, text in match.groupdict().items()}
        for name, value in values.items():
            self._check_text(method["parameters"][name], value, name)
        typed = self._check_query(method, query)
        if not route.is_upload:
            self._check_body(method, body)
        return Matched(method["id"], values, typed, route.is_upload)

    def check_answer(self, method_id: str, value: Mapping[str, Any]) -> None:
        """Raise an AssertionError unless the description allows a fake's response to the method."""
        response = self._methods[method_id].get("response")
        assert response is not None, f"{method_id} answers nothing"
        try:
            self._check_value(response, value, "", "")
        except ApiError as error:
            raise AssertionError(f"not a valid answer of {method_id}: {error.message}") from error

    # --- parameters -------------------------------------------------------------------------------

    def _check_query(self, method: Mapping[str, Any], query: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        known = {
            name: one for name, one in method.get("parameters", {}).items() if one["location"] == "query"
        }
        typed: dict[str, Any] = {}
        for name, texts in query.items():
            parameter = known.get(name) or self._common.get(name) or self._common.get(name.removeprefix("$"))
            if parameter is None:
                raise invalid(
                    f'Invalid JSON payload received. Unknown name "{name}": Cannot bind query parameter. '
                    f"Field '{name}' could not be found in request message."
                )
            if len(texts) > 1 and not parameter.get("repeated"):
                raise invalid(
                    f"Invalid JSON payload received. Field '{name}' is not repeated and was given "
                    f"{len(texts)} times.",
                    field=name,
                )
            values = tuple(self._check_text(parameter, text, name) for text in texts)
            typed[name] = values if parameter.get("repeated") else values[0]
        for name, parameter in known.items():
            if parameter.get("required") and name not in typed:
                raise ApiError(400, "required", f"Required parameter: {name}")
        if typed.get("alt") == "media" and not method.get("supportsMediaDownload"):
            raise ApiError(400, "badRequest", "The method does not support media download.")
        return typed

    def _check_text(self, one: Mapping[str, Any], text: str, name: str) -> Any:
        """Return the value of a parameter in the path or the query."""
        kind, form = one["type"], one.get("format", "")
        if kind == "boolean":
            if text.lower() not in {"true", "false"}:
                raise invalid(f"Invalid value at '{name}' (TYPE_BOOL), \"{text}\"", field=name)
            return text.lower() == "true"
        if kind == "integer" or form in _INTEGERS:
            number = _whole(text)
            low, high = _INTEGERS[form or "int32"]
            low, high = max(low, int(one.get("minimum", low))), min(high, int(one.get("maximum", high)))
            if number is None or not low <= number <= high:
                raise invalid(
                    f"Invalid value at '{name}' (TYPE_{form.upper() or 'INT32'}), \"{text}\"", field=name
                )
            return number
        if "enum" in one and text not in one["enum"] and name not in {"alt", "$alt"}:
            raise invalid(f"Invalid value at '{name}' (TYPE_ENUM), \"{text}\"", field=name)
        if "pattern" in one and re.fullmatch(one["pattern"], text) is None:
            raise invalid(
                f"Invalid value for field '{name}': '{text}'. Must be a match of regex '{one['pattern']}'",
                field=name,
            )
        return text

    # --- bodies -----------------------------------------------------------------------------------

    def _check_body(self, method: Mapping[str, Any], body: object) -> None:
        request = method.get("request")
        if request is None:
            if body:
                raise invalid(
                    f'Invalid JSON payload received. Unknown name "{_first(body)}": Cannot bind body field; '
                    f"the method takes none."
                )
            return
        self._check_value(request, {} if body is None else body, "", method["id"])

    def check_value(self, schema: str, value: object) -> None:
        """Refuse a JSON value that does not match the schema, such as an object's metadata in an upload.

        Raises:
            ApiError: 400.
        """
        self._check_value({"$ref": schema}, value, "", "")

    def _check_value(self, schema: Mapping[str, Any], value: object, where: str, method_id: str) -> None:
        if "$ref" in schema:
            schema = self._schemas[schema["$ref"]]
        kind = schema["type"]
        if kind == "any":
            return
        if kind == "array":
            if not isinstance(value, list):
                raise _wrong_kind(where, "an array", value)
            for number, item in enumerate(value):
                self._check_value(schema["items"], item, f"{where}[{number}]", method_id)
        elif kind == "object":
            self._check_object(schema, value, where, method_id)
        else:
            _check_scalar(schema, value, where)

    def _check_object(self, schema: Mapping[str, Any], value: object, where: str, method_id: str) -> None:
        if not isinstance(value, dict):
            raise _wrong_kind(where, "an object", value)
        properties: Mapping[str, Any] = schema.get("properties", {})
        for name, item in value.items():
            here = f"{where}.{name}" if where else name
            property_ = properties.get(name)
            if property_ is None and self._is_proto:
                property_ = properties.get(_camel(name))
            if property_ is None:
                property_ = schema.get("additionalProperties")
            if property_ is None:
                at = f" at '{where}'" if where else ""
                raise invalid(
                    f'Invalid JSON payload received. Unknown name "{name}"{at}: Cannot find field.',
                    field=where,
                )
            if item is not None:  # null means absent.
                self._check_value(property_, item, here, method_id)
        for name in self._required_by(schema, method_id):
            if value.get(name) is None:
                here = f"{where}.{name}" if where else name
                raise ApiError(400, "required", f"Required field '{here}' not specified")

    def _required_by(self, schema: Mapping[str, Any], method_id: str) -> Sequence[str]:
        """Return the properties that a method requires, cached because lists of entries are long."""
        key = (id(schema), method_id)
        if key not in self._required:
            self._required[key] = [
                name
                for name, one in schema.get("properties", {}).items()
                if method_id in one.get("annotations", {}).get("required", ())
            ]
        return self._required[key]


def _check_scalar(schema: Mapping[str, Any], value: object, where: str) -> None:
    kind, form = schema["type"], schema.get("format", "")
    if kind == "boolean":
        good = isinstance(value, bool)
    elif kind == "number":
        good = isinstance(value, (int, float)) and not isinstance(value, bool)
    elif kind == "integer" or form in {"int64", "uint64"}:
        number = value if isinstance(value, int) and not isinstance(value, bool) else _whole(value)
        low, high = _INTEGERS[form or "int32"]
        good = number is not None and low <= number <= high
    elif not isinstance(value, str):
        good = False
    elif "enum" in schema:
        good = value in schema["enum"]
    elif "pattern" in schema:
        good = re.fullmatch(schema["pattern"], value) is not None
    elif form == "byte":
        good = _is_base64(value)
    elif form == "google-duration":
        good = re.fullmatch(r"-?\d+(\.\d{1,9})?s", value) is not None
    elif form in {"google-datetime", "date-time"}:
        good = re.fullmatch(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d.*", value) is not None
    else:
        good = True
    if not good:
        name = "TYPE_ENUM" if "enum" in schema else f"TYPE_{(form or kind).upper().replace('-', '_')}"
        raise invalid(f"Invalid value at '{where}' ({name}), {json.dumps(value)}", field=where)


def _methods(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from node.get("methods", {}).values()
    for resource in node.get("resources", {}).values():
        yield from _methods(resource)


def _routes(base: str, method: Mapping[str, Any]) -> Iterator[_Route]:
    paths = [(base + method["path"], False)]
    protocols = method.get("mediaUpload", {}).get("protocols", {})
    paths += [(protocol["path"], True) for protocol in protocols.values()]
    if method.get("useMediaDownloadService"):
        paths.append((f"/download{base}{method['path']}", False))
    for path, is_upload in paths:
        pattern, end, num_literals = "", 0, 0
        for match in _PARAMETER.finditer(path):
            literal = path[end : match.start()]
            end, num_literals = match.end(), num_literals + len(literal)
            inner = "[^/]+"
            if match[1]:  # {+name} may contain slashes; the parameter has a pattern.
                inner = method["parameters"][match[2]].get("pattern", ".+").strip("^$")
            pattern += f"{re.escape(literal)}(?P<{match[2]}>{inner})"
        literal = path[end:]
        yield _Route(
            method["httpMethod"],
            re.compile(pattern + re.escape(literal)),
            num_literals + len(literal),
            method,
            is_upload,
        )


def _wrong_kind(where: str, wanted: str, value: object) -> ApiError:
    return invalid(f"Invalid value at '{where}' ({wanted} is expected), {json.dumps(value)}", field=where)


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,20}", value) else None


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except binascii.Error:
        return False
    return True


@cache
def _camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda found: found[1].upper(), name)


def _first(body: object) -> str:
    return str(next(iter(body))) if isinstance(body, dict) else str(body)[:40]
