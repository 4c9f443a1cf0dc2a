"""The JSON Schema of the job file and of plugins' tables, and the docstrings of their fields."""

from __future__ import annotations

import ast
import inspect as source
import textwrap
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import inspect

from cloudspot.jobfile.quantities import DURATION_PATTERN, MONEY_PATTERN, SIZE_PATTERN
from cloudspot.jobfile.spec import MAX_NAME_LENGTH, JobSpec

DRAFT: Final = "http://json-schema.org/draft-07/schema#"
"""What editors understand; nothing newer is used."""

_INSIDE: Final = r"^(?![/~])(?!(?:[^\\]*/)?\.\.(?:/|$))[^\\]+$"
"""A path that stays inside the working directory."""
_VARIABLE: Final = r"^(?!CLOUDSPOT_)[A-Za-z_][A-Za-z0-9_]*$"
_QUANTITIES: Final = {"duration": DURATION_PATTERN, "size": SIZE_PATTERN}

_CHECKED: Final[Mapping[tuple[str, ...], Mapping[str, Any]]] = {
    ("name",): {"pattern": rf"^[a-z0-9](?:[a-z0-9-]{{0,{MAX_NAME_LENGTH - 2}}}[a-z0-9])?$"},
    ("store",): {"pattern": r"^[a-z][a-z0-9+.-]*://[^/@]*(?:/.*)?$"},
    ("run", "entrypoint"): {"pattern": _INSIDE},
    ("run", "env"): {"propertyNames": {"pattern": _VARIABLE}},
    ("run", "secrets"): {"items": {"type": "string", "pattern": _VARIABLE}, "uniqueItems": True},
    ("checkpoint",): {"dependencies": {"complete_file": ["directory"]}},
    ("checkpoint", "directory"): {"pattern": _INSIDE},
    ("checkpoint", "complete_file"): {"pattern": _INSIDE},
    ("limits", "max_cost"): {"type": ["number", "string"], "pattern": MONEY_PATTERN},
}
"""What ``load_job`` asks of a field beyond its type."""


def job_schema(options: Mapping[str, type[msgspec.Struct]]) -> dict[str, Any]:
    """Return the schema of a job file (JSON Schema, draft 7), each field with its docstring.

    It refuses what ``load_job`` refuses, but for what concerns two fields at once (``nodes.min`` above
    ``nodes.max``), credentials in ``run.env``, and files that do not exist.

    Args:
        options: For each provider the type of its own table; any table stands for one not named here.
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
    """Return the docstring of each field of the struct, on one line, by the field's name in TOML.

    Empty for a field without one, and for all where the source is not at hand.
    """
    names = dict(zip(type_.__struct_fields__, type_.__struct_encode_fields__, strict=True))
    docs = dict.fromkeys(names.values(), "")
    try:
        body = ast.parse(textwrap.dedent(source.getsource(type_))).body[0]
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
    info = inspect.type_info(type_)
    assert isinstance(info, inspect.StructType)
    docs = field_docs(type_)
    properties = {}
    for field in info.fields:
        inner = (*path, field.encode_name)
        schema = _of(field.type, inner)
        if docs[field.encode_name]:
            schema = {**schema, "description": docs[field.encode_name]}
        if field.default not in (msgspec.NODEFAULT, None) and not isinstance(field.default, msgspec.Struct):
            schema["default"] = field.default
        properties[field.encode_name] = {**schema, **_CHECKED.get(inner, {})}
    table: dict[str, Any] = {
        "type": "object",
        "description": _text((type_.__doc__ or "").partition("\n\n")[0]),
        "properties": properties,
        "additionalProperties": False,
    }
    required = [field.encode_name for field in info.fields if field.required]
    return {**table, "required": required} if required else table


def _of(node: inspect.Type, path: tuple[str, ...]) -> dict[str, Any]:
    """Return the schema of a field's type; None is no value of TOML and left out."""
    if isinstance(node, inspect.Metadata):
        schema = _of(node.type, path)
        extra = node.extra or {}
        if "quantity" in extra:
            pattern = _QUANTITIES[extra["quantity"]]
            if "exclusiveMinimum" in schema:
                pattern = pattern.replace("^", "^(?=.*[1-9])", 1)
            schema = {**schema, "type": [schema["type"], "string"], "pattern": pattern}
        if "words" in extra:
            schema = {"anyOf": [{"enum": list(extra["words"])}, schema]}
        return {**schema, **(node.extra_json_schema or {})}
    if isinstance(node, inspect.UnionType):
        members = [_of(member, path) for member in node.types if not isinstance(member, inspect.NoneType)]
        return members[0] if len(members) == 1 else {"anyOf": members}
    if isinstance(node, inspect.StructType):
        return {**_table(node.cls, path), **_CHECKED.get(path, {})}
    if isinstance(node, inspect.DictType):
        return {"type": "object", "additionalProperties": _of(node.value_type, path)}
    if isinstance(node, inspect.ListType | inspect.VarTupleType):
        return {"type": "array", "items": _of(node.item_type, path)}
    if isinstance(node, inspect.LiteralType):
        return {"enum": list(node.values)}
    if isinstance(node, inspect.EnumType):
        return {"enum": [member.value for member in node.cls]}
    if isinstance(node, inspect.IntType | inspect.FloatType):
        kind = "integer" if isinstance(node, inspect.IntType) else "number"
        bounds = {"minimum": node.ge, "exclusiveMinimum": node.gt, "maximum": node.le}
        return {"type": kind, **{name: bound for name, bound in bounds.items() if bound is not None}}
    if isinstance(node, inspect.StrType):
        return {"type": "string", **({} if node.pattern is None else {"pattern": node.pattern})}
    # A type that no table has had so far: whatever it is, the loader judges it.
    return {"type": "boolean"} if isinstance(node, inspect.BoolType) else {}
