"""The JSON Schema of the job file and of plugins' tables, with the docstrings of their fields."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args

import msgspec

from cloudspot.jobfile.spec import JobSpec

DRAFT: Final = "http://json-schema.org/draft-07/schema#"
"""The version of JSON Schema that editors understand."""


def job_schema(options: Mapping[str, type[msgspec.Struct]]) -> dict[str, Any]:
    """Return the schema of a job file (JSON Schema, draft 7), with the docstring of each field.

    It refuses the same job files as ``load_job``, except for rules about several fields (``nodes.min`` above
    ``nodes.max``), credentials in ``run.env``, and missing files.

    Args:
        options: The type of each provider's own table; any other provider may have any table.
    """
    schema = _table(JobSpec)
    nodes = schema["properties"]["nodes"]
    description = nodes.pop("description")
    integer = {"type": "integer", "minimum": 1}
    schema["properties"]["nodes"] = {"description": description, "anyOf": [integer, nodes], "default": 1}
    schema["properties"]["providers"]["properties"] = {
        name: _table(type_) for name, type_ in sorted(options.items())
    }
    return {"$schema": DRAFT, "title": "The job file of cloudspot, job.toml", **schema}


def field_docs(type_: type[msgspec.Struct]) -> dict[str, str]:
    """Return the docstring of each field, on one line, by the field's name in TOML.

    The docstring is empty if a field has none, and for all fields if the source is unavailable.
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


def _table(type_: type[msgspec.Struct]) -> dict[str, Any]:
    """Return msgspec's schema of the struct, with docstrings for editors and ``load_job``'s rules."""
    structs = {struct.__name__: struct for struct in _structs(type_)}
    docs = {name: field_docs(struct) for name, struct in structs.items()}
    (root,), tables = msgspec.json.schema_components([type_], ref_template="{name}")

    def plain(schema: dict[str, Any]) -> dict[str, Any]:
        """Replace references with their tables, and remove null, which TOML lacks."""
        if "$ref" in schema:
            return table(schema["$ref"])
        if "anyOf" in schema:
            literals = [{"enum": schema["enum"]}] if "enum" in schema else []
            members = [plain(member) for member in schema["anyOf"] if member != {"type": "null"}]
            return members[0] if len(members) == 1 and not literals else {"anyOf": [*literals, *members]}
        if "pattern" in schema and "enum" in schema:  # editors propose the enum; other matches are allowed
            known = schema.pop("enum")
            return {"anyOf": [{"enum": known}, schema]}
        if "pattern" in schema and schema["type"] != "string":  # a quantity
            schema = {**schema, "type": [schema["type"], "string"]}
        nested = {key: schema[key] for key in ("items", "additionalProperties") if key in schema}
        return {**schema, **{key: plain(inner) for key, inner in nested.items()}}

    def table(name: str) -> dict[str, Any]:
        definition = tables[name]
        if "properties" not in definition:
            return {"enum": definition["enum"]}
        rules = getattr(structs[name], "rules", ())
        properties = {}
        for field, schema in definition["properties"].items():
            default = schema.pop("default", None)
            properties[field] = plain(schema)
            if docs[name][field]:
                properties[field]["description"] = docs[name][field]
            if default is not None and not isinstance(default, dict):
                properties[field]["default"] = default
        return {
            "type": "object",
            "description": _text(definition.get("description", "").partition("\n\n")[0]),
            "properties": properties,
            "additionalProperties": False,
            **({"required": definition["required"]} if definition["required"] else {}),
            **({"allOf": [rule.schema() for rule in rules]} if rules else {}),
        }

    return table(root["$ref"])


def _structs(annotation: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        yield annotation
        for field in msgspec.structs.fields(annotation):
            yield from _structs(field.type)
    for argument in get_args(annotation):
        yield from _structs(argument)
