"""The JSON Schema of the job file and of plugins' tables, with the docstrings of their fields."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args

import msgspec

from cloudspot.jobfile.data import DATA_NAME, DATA_PATH, DATA_URL, SHA256
from cloudspot.jobfile.notify import QUIET_PATTERN, URL_PATTERN
from cloudspot.jobfile.quantities import MONEY_PATTERN
from cloudspot.jobfile.spec import (
    IMAGE,
    LABEL_NAME,
    LABEL_VALUE,
    MAX_LABELS,
    MAX_NAME_LENGTH,
    MODULE,
    POLICIES,
    POLICY_NAME,
    SIGNAL_NAME,
    SIGNALS,
    JobSpec,
)

DRAFT: Final = "http://json-schema.org/draft-07/schema#"
"""The version that editors understand."""

_INSIDE: Final = r"^(?![/~])(?!(?:[^\\]*/)?\.\.(?:/|$))[^\\]+$"
"""A path that stays inside the working directory."""
_VARIABLE: Final = r"^(?!CLOUDSPOT_)[A-Za-z_][A-Za-z0-9_]*$"

_CHECKED: Final[Mapping[tuple[str, ...], Mapping[str, Any]]] = {
    ("name",): {"pattern": rf"^[a-z0-9](?:[a-z0-9-]{{0,{MAX_NAME_LENGTH - 2}}}[a-z0-9])?$"},
    ("labels",): {
        "maxProperties": MAX_LABELS,
        "propertyNames": {"pattern": f"^{LABEL_NAME}$"},
        "additionalProperties": {"type": "string", "pattern": f"^{LABEL_VALUE}$"},
    },
    ("store",): {"pattern": r"^[a-z][a-z0-9+.-]*://[^/@]*(?:/.*)?$"},
    ("data",): {"propertyNames": {"pattern": f"^{DATA_NAME}$"}},
    ("data", "url"): {"pattern": DATA_URL},
    ("data", "path"): {"pattern": DATA_PATH},
    ("data", "sha256"): {"pattern": f"^{SHA256}$"},
    ("run",): {
        "oneOf": [{"required": ["entrypoint"]}, {"required": ["command"]}],
        "dependencies": {"image_login": ["image", "secrets"], "preload": ["entrypoint"]},
    },
    ("run", "entrypoint"): {"pattern": _INSIDE},
    ("run", "image"): {"pattern": f"^{IMAGE}$"},
    ("run", "image_login", "user"): {"pattern": "^[^:]+$"},
    ("run", "image_login", "secret"): {"pattern": _VARIABLE},
    ("run", "command"): {"minItems": 1},
    ("run", "env"): {"propertyNames": {"pattern": _VARIABLE}},
    ("run", "preload"): {"items": {"type": "string", "pattern": f"^{MODULE}$"}},
    ("run", "secrets"): {"items": {"type": "string", "pattern": _VARIABLE}, "uniqueItems": True},
    ("checkpoint",): {
        "dependencies": {
            name: ["directory"] for name in ("complete_file", "exclude", "incomplete_file", "on_notice")
        },
        "not": {"required": ["complete_file", "incomplete_file"]},
    },
    ("checkpoint", "directory"): {"pattern": _INSIDE, "items": {"pattern": _INSIDE}, "minItems": 1},
    ("checkpoint", "exclude"): {"items": {"type": "string", "pattern": _INSIDE}},
    ("checkpoint", "complete_file"): {"pattern": _INSIDE},
    ("checkpoint", "incomplete_file"): {"pattern": _INSIDE},
    ("checkpoint", "on_notice"): {
        "anyOf": [{"enum": list(SIGNALS)}, {"pattern": f"^(?!{SIGNAL_NAME}$)"}],
        "pattern": _INSIDE,
    },
    ("spot", "policy"): {"anyOf": [{"enum": sorted(POLICIES)}, {"pattern": f"^{POLICY_NAME}$"}]},
    ("limits",): {
        "if": {"properties": {"on_idle": {"const": "stop"}}, "required": ["on_idle"]},
        "then": {"required": ["idle_after"]},
    },
    ("limits", "max_cost"): {"type": ["number", "string"], "pattern": MONEY_PATTERN},
    ("notify", "urls"): {"items": {"type": "string", "pattern": URL_PATTERN}},
    ("notify", "quiet"): {"pattern": QUIET_PATTERN},
}
"""What ``load_job`` requires of a field beyond its type."""


def job_schema(options: Mapping[str, type[msgspec.Struct]]) -> dict[str, Any]:
    """Return the schema of a job file (JSON Schema, draft 7), with the docstring of each field.

    It refuses what ``load_job`` refuses, except for rules about two fields at once (``nodes.min`` above
    ``nodes.max``), credentials in ``run.env``, and files that do not exist.

    Args:
        options: The type of each provider's own table; a provider not named here may have any table.
    """
    schema = _table(JobSpec, ())
    nodes = schema["properties"]["nodes"]
    description = nodes.pop("description")
    integer = {"type": "integer", "minimum": 1}
    schema["properties"]["nodes"] = {"description": description, "anyOf": [integer, nodes], "default": 1}
    schema["properties"]["providers"]["properties"] = {
        name: _table(type_, ("providers", name)) for name, type_ in sorted(options.items())
    }
    return {"$schema": DRAFT, "title": "The job file of cloudspot, job.toml", **schema}


def field_docs(type_: type[msgspec.Struct]) -> dict[str, str]:
    """Return the docstring of each field, on one line, by the field's name in TOML.

    Empty for a field without one, and for all fields if the source is not available.
    """
    names = dict(zip(type_.__struct_fields__, type_.__struct_encode_fields__, strict=True))
    docs = dict.fromkeys(names.values(), "")
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(type_))).body[0]
    except (OSError, TypeError, SyntaxError):
        return docs
    assert isinstance(body, ast.ClassDef)
    for statement, following in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
        ):
            docs[names[statement.target.id]] = _text(str(following.value.value))
    return docs


def _text(docstring: str) -> str:
    """Return a docstring as Markdown on one line."""
    return " ".join(docstring.split()).replace("``", "`")


def _table(type_: type[msgspec.Struct], path: tuple[str, ...]) -> dict[str, Any]:
    """Return msgspec's schema of the struct, with what an editor shows and ``load_job`` checks."""
    docs = {struct.__name__: field_docs(struct) for struct in _structs(type_)}
    (root,), tables = msgspec.json.schema_components([type_], ref_template="{name}")

    def plain(schema: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        """Put tables in place of references, and leave out null, which TOML does not have."""
        if "$ref" in schema:
            return table(schema["$ref"], path)
        if "anyOf" in schema:
            words = [{"enum": schema["enum"]}] if "enum" in schema else []
            members = [plain(member, path) for member in schema["anyOf"] if member != {"type": "null"}]
            return members[0] if len(members) == 1 and not words else {"anyOf": [*words, *members]}
        if "pattern" in schema and schema["type"] != "string":  # a quantity
            schema = {**schema, "type": [schema["type"], "string"]}
        nested = {key: schema[key] for key in ("items", "additionalProperties") if key in schema}
        return {**schema, **{key: plain(inner, path) for key, inner in nested.items()}}

    def table(name: str, path: tuple[str, ...]) -> dict[str, Any]:
        found = tables[name]
        if "properties" not in found:
            return {"enum": found["enum"]}
        properties = {}
        for field, schema in found["properties"].items():
            default = schema.pop("default", None)
            properties[field] = plain(schema, (*path, field))
            if docs[name][field]:
                properties[field]["description"] = docs[name][field]
            if default is not None and not isinstance(default, dict):
                properties[field]["default"] = default
            properties[field].update(_CHECKED.get((*path, field), {}))
        return {
            "type": "object",
            "description": _text(found.get("description", "").partition("\n\n")[0]),
            "properties": properties,
            "additionalProperties": False,
            **({"required": found["required"]} if found["required"] else {}),
        }

    return table(root["$ref"], path)


def _structs(annotation: Any) -> Iterator[type[msgspec.Struct]]:
    """Yield the structs that a type is made of."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        yield annotation
        for field in msgspec.structs.fields(annotation):
            yield from _structs(field.type)
    for argument in get_args(annotation):
        yield from _structs(argument)
