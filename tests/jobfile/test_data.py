"""[data.NAME]: what is accepted, what is refused and how, and that the schema refuses the same."""

import re

import jsonschema
import pytest

from cloudspot.errors import SpecError
from cloudspot.jobfile.data import variable_of
from cloudspot.jobfile.json_schema import job_schema
from cloudspot.jobfile.spec import load_job, spec_from_json, spec_to_json

SCHEMA = job_schema({})


def raw(**inputs):
    return {"name": "digits", "run": {"entrypoint": "train.py"}, "data": inputs}


def fault(**inputs):
    with pytest.raises(SpecError) as caught:
        spec_from_json(raw(**inputs))
    return str(caught.value).removeprefix("stored job: ").partition("; was it")[0]


def accepted_by_schema(**inputs):
    return jsonschema.Draft7Validator(SCHEMA).is_valid(raw(**inputs))


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"url": "s3://bucket/images/"}, "data/images"),
        ({"url": "s3://bucket/"}, "data/images"),
        ({"url": "gs://bucket/a b.tar", "path": "./in//x.tar", "sha256": "0" * 64}, "in/x.tar"),
        ({"url": "file:///data/corpus/", "path": "/mnt/corpus/"}, "/mnt/corpus"),
        ({"url": "https://host/file?version=3"}, "data/images"),
        ({"url": "s3://bucket/images/", "mode": "stream"}, "data/images"),
    ],
)
def test_what_is_accepted_and_where_it_goes(fields, path):
    spec = spec_from_json(raw(images=fields))
    assert spec.data["images"].path_or_default("images") == path
    assert spec_from_json(spec_to_json(spec)) == spec
    assert accepted_by_schema(images=fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"url": "bucket/x"}, 'data.images.url: "bucket/x" is not a URL'),
        ({"url": "https://me:pw@host/x"}, "data.images.url: must not contain credentials"),
        ({"url": "s3://bucket/x", "path": "../x"}, 'data.images.path: "../x" must be a path below'),
        ({"url": "s3://bucket/x", "path": "~/x"}, 'data.images.path: "~/x" must be a path below'),
        ({"url": "s3://bucket/x", "path": ""}, 'data.images.path: "" must be a path below'),
        (
            {"url": "s3://bucket/x", "sha256": "abc"},
            'data.images.sha256: expected 64 hexadecimal digits in lower case, got "abc"',
        ),
        ({"url": "s3://bucket/x", "mode": "mount"}, 'data.images.mode: expected one of "stage", "stream"; got "mount"'),
        ({"url": "s3://bucket/x", "kind": "stream"}, "data.images.kind: unknown field; the fields here are url"),
        ({}, "data.images.url: missing"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_one_field_is_refused_by_file_and_schema(fields, said):
    found = fault(images=fields)
    assert found.startswith(said)
    assert "pw" not in found
    assert not accepted_by_schema(images=fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"url": "s3://bucket"}, 'data.images.url: "s3://bucket" names no object; for all that lies below it: '),
        ({"url": "s3://bucket/x/", "sha256": "0" * 64}, "data.images.sha256: is the hash of one file"),
        ({"url": "https://host/directory/"}, "data.images.url: .* names no file"),
        ({"url": "https://host"}, "data.images.url: .* names no file"),
        ({"url": "https://b.s3.amazonaws.com/x?X-Amz-Signature=s3cr3t"},
         'data.images.url: has a parameter "X-Amz-Signature", which looks like a credential'),
        ({"url": "https://x.blob.core.windows.net/x?sig=s3cr3t"}, 'data.images.url: has a parameter "sig"'),
        ({"url": "HTTPS://me:s3cr3t@host/x"}, "data.images.url: must not contain credentials"),
        ({"url": "http://host/\u00e4"}, "data.images.url: must be printable ASCII without spaces"),
        ({"url": "http://host/a b"}, "data.images.url: must be printable ASCII without spaces"),
        ({"url": "http://host:abc/x"}, "data.images.url: is not a URL that can be asked for: "),
        ({"url": "http://[::1/x"}, "data.images.url: is not a URL that can be asked for: "),
        ({"url": "file:///x"}, 'data.images.url: "file:///x" lies in the root directory'),
        ({"url": "s3://bucket/x", "path": "."}, "data.images.path: "),
        ({"url": "s3://bucket/x", "path": "/"}, "data.images.path: "),
        ({"url": "s3://bucket/x", "path": "in", "mode": "stream"}, "data.images.path: cannot be given with"),
        ({"url": "s3://bucket/x", "sha256": "0" * 64, "mode": "stream"}, "data.images.sha256: cannot be given with"),
    ],
)  # fmt: skip
def test_what_is_wrong_besides(fields, said):
    found = fault(images=fields)
    assert re.match(said, found), found
    assert "s3cr3t" not in found


def test_a_name_is_a_part_of_a_path_and_of_a_variable():
    assert variable_of("my-images_2") == "CLOUDSPOT_DATA_MY_IMAGES_2"
    url = {"url": "s3://bucket/x/"}
    assert fault(Images=url).startswith('data: "Images" must be up to 32 lower-case letters')
    assert not accepted_by_schema(Images=url)
    assert "has the variable CLOUDSPOT_DATA_A_B of data.a-b" in fault(**{"a-b": url, "a_b": url})


def test_no_input_lies_in_another():
    url = "s3://bucket/x/"
    inputs = {
        "a": {"url": url, "path": "in"},
        "b": {"url": url, "path": "in-2"},
        "c": {"url": url, "path": "in/c"},
    }
    assert fault(**inputs) == 'data.c.path: "in/c" is where data.a goes; name another'
    assert fault(a=inputs["a"], b=inputs["a"]).startswith('data.b.path: "in" is where data.a goes')
    spec_from_json(raw(a=inputs["a"], b=inputs["b"]))


def test_set_changes_an_input(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(
        'name = "digits"\n[run]\nentrypoint = "train.py"\n[data.images]\nurl = "s3://bucket/x/"\n'
    )
    spec = load_job(path, overrides=["data.images.url=s3://bucket/y/", "data.images.path=in"])
    assert (spec.data["images"].url, spec.data["images"].path) == ("s3://bucket/y/", "in")


def test_of_several_inputs_the_one_that_is_wrong_is_named():
    right = {"url": "s3://bucket/x/"}
    assert fault(a=right, b={"path": "x"}) == "data.b.url: missing; it has no default"
    assert fault(a=right, b={"url": 3}) == "data.b.url: expected a string, got 3"
