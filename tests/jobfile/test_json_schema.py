"""The JSON Schema of the job file: its quantities are the parser's, and every field is explained."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudspot.jobfile.json_schema import field_docs, job_schema
from cloudspot.jobfile.quantities import parse_duration, parse_money, parse_size
from cloudspot.jobfile.toml import read_toml
from cloudspot.local.options import LocalOptions

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads(resources.files("cloudspot").joinpath("job.schema.json").read_text())
JOB_FILES = sorted([*ROOT.glob("examples/*/job.toml"), *ROOT.glob("tests/**/job.toml")])
JOB = {"name": "digits", "run": {"entrypoint": "train.py"}}
PARTS = st.sampled_from(
    ["0", "1", "7.5", "10", ".", " ", "ms", "s", "m", "h", "d", "B", "KiB", "GB", "G", "USD", "usd"]
)


def accepts(value):
    return jsonschema.Draft7Validator(SCHEMA).is_valid({**JOB, **value})


def parses(parse, text, *, positive=False):
    try:
        value = parse(text)
    except ValueError:
        return False
    amount = value[0] if isinstance(value, tuple) else value
    return amount > 0 or not positive


def test_the_schema_itself_is_valid():
    jsonschema.Draft7Validator.check_schema(SCHEMA)


@pytest.mark.full
@given(st.lists(PARTS, max_size=6).map("".join))
def test_a_quantity_is_taken_where_the_parser_takes_it(text):
    assert accepts({"spot": {"max_wait": text}}) == parses(parse_duration, text)
    assert accepts({"spot": {"deadline": text}}) == parses(parse_duration, text, positive=True)
    assert accepts({"resources": {"memory": text}}) == parses(parse_size, text)
    assert accepts({"limits": {"max_cost": text}}) == parses(parse_money, text, positive=True)


@pytest.mark.parametrize("path", JOB_FILES, ids=lambda path: path.parent.name)
def test_every_job_file_of_the_repository_is_accepted(path):
    jsonschema.validate(read_toml(path), SCHEMA)


def fields(schema, path=""):
    for name, inner in schema.get("properties", {}).items():
        yield f"{path}{name}", inner
        for each in (inner, inner.get("items", {}), *inner.get("anyOf", ())):
            yield from fields(each, f"{path}{name}.")


def test_every_field_has_a_description():
    assert [path for path, inner in fields(SCHEMA) if not inner.get("description")] == []
    assert "providers.local.reclaims.after_steps" in dict(fields(SCHEMA))


def test_the_table_of_a_provider_is_typed_and_that_of_any_other_open():
    assert accepts({"providers": {"local": {"notice": "5s"}, "moon": {"crater": 3}}})
    assert not accepts({"providers": {"local": {"crater": 3}}})
    assert not accepts({"providers": {"local": {"notice": "soon"}}})
    assert not accepts({"providers": {"moon": 3}})


def test_another_plugins_options_can_be_part_of_it():
    class MoonOptions(msgspec.Struct):
        """``[providers.moon]``: far away."""

        crater: int
        """Which one."""

    schema = job_schema({"local": LocalOptions, "moon": MoonOptions})
    moon = schema["properties"]["providers"]["properties"]["moon"]
    assert moon["properties"] == {"crater": {"type": "integer", "description": "Which one."}}
    assert moon["required"] == ["crater"]


def test_a_struct_without_source_has_fields_without_docs():
    made = msgspec.defstruct("Made", [("a", int)])
    assert field_docs(made) == {"a": ""}
