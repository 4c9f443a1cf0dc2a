"""What an image's name means, and which login it is pulled with."""

import json
from importlib import resources

import jsonschema
import pytest

from cloudspot.errors import SpecError
from cloudspot.jobfile.image import image_parts, login_key
from cloudspot.jobfile.spec import change_job, load_job, spec_from_json


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("python", ("registry-1.docker.io", "library/python", "latest")),
        ("python:3.13", ("registry-1.docker.io", "library/python", "3.13")),
        ("pytorch/pytorch:2", ("registry-1.docker.io", "pytorch/pytorch", "2")),
        ("docker.io/pytorch/pytorch", ("registry-1.docker.io", "pytorch/pytorch", "latest")),
        ("ghcr.io/team/deep/train:7", ("ghcr.io", "team/deep/train", "7")),
        ("localhost:5000/it", ("localhost:5000", "it", "latest")),
        ("localhost/it:1", ("localhost", "it", "1")),
    ],
)
def test_names_mean_what_they_mean_to_docker(image, parts):
    assert image_parts(image) == parts


def test_dockers_own_registry_has_a_name_of_its_own_among_log_ins():
    assert login_key(image_parts("pytorch/pytorch")[0]) == "https://index.docker.io/v1/"
    assert login_key("ghcr.io") == "ghcr.io"


def job(**run):
    return {"name": "boxed", "run": {"command": ["true"], **run}}


LOGIN = {"user": "$oauthtoken", "secret": "NGC_API_KEY"}


def test_a_log_in_names_a_user_and_one_of_the_jobs_secrets():
    raw = job(image="nvcr.io/it:7", image_login=LOGIN, secrets=["NGC_API_KEY"])
    login = spec_from_json(raw).run.image_login
    assert (login.user, login.secret) == ("$oauthtoken", "NGC_API_KEY")
    jsonschema.validate(raw, SCHEMA)


SCHEMA = json.loads(resources.files("cloudspot").joinpath("job.schema.json").read_text())


@pytest.mark.parametrize(
    ("run", "says", "in_schema"),
    [
        ({"image_login": LOGIN, "secrets": ["NGC_API_KEY"]}, "run.image_login: has no effect without run.image", True),
        ({"image": "it", "image_login": LOGIN}, 'run.image_login.secret: "NGC_API_KEY" is not one of run.secrets', True),
        (
            {"image": "it", "image_login": LOGIN, "secrets": ["OTHER"]},
            'run.image_login.secret: "NGC_API_KEY" is not one of run.secrets; add it there',
            False,
        ),
        (
            {"image": "it", "image_login": {**LOGIN, "user": "me:hush"}, "secrets": ["NGC_API_KEY"]},
            "run.image_login.user: must be a name without a colon",
            True,
        ),
        ({"image": "it", "image_login": {"user": "me"}}, "run.image_login.secret: missing", True),
        ({"image": "it", "image_login": {**LOGIN, "password": "hush"}}, "run.image_login.password: unknown field", True),
    ],
)  # fmt: skip
def test_a_log_in_that_cannot_be_meant_is_refused(run, says, in_schema):
    with pytest.raises(SpecError, match=says) as refused:
        spec_from_json(job(**run))
    assert "hush" not in str(refused.value)
    is_valid = jsonschema.Draft7Validator(SCHEMA).is_valid(job(**run))
    assert is_valid is not in_schema


@pytest.mark.parametrize(
    ("overrides", "user"),
    [
        (["run.image=nvcr.io/other:1"], "$oauthtoken"),
        (["run.image=python:3.12"], None),
        (["run.image=ghcr.io/it:1"], None),
        (["run.image=ghcr.io/it:1", "run.image_login.user=me"], "me"),
        (["limits.max_restarts=1"], "$oauthtoken"),
    ],
)
def test_no_registry_is_told_the_log_in_of_another(overrides, user, tmp_path):
    """``--set run.image=`` kept it, and a public image of another registry could not be had any more."""
    login = {"user": "$oauthtoken", "secret": "NGC_API_KEY"}
    spec = spec_from_json(job(image="nvcr.io/it:7", image_login=login, secrets=["NGC_API_KEY"]))
    (tmp_path / "job.toml").write_text(
        'name = "j"\n[run]\nentrypoint = "train.py"\nimage = "nvcr.io/it:7"\nsecrets = ["NGC_API_KEY"]\n'
        'image_login = { user = "$oauthtoken", secret = "NGC_API_KEY" }\n'
    )
    for changed in (change_job(spec, overrides), load_job(tmp_path / "job.toml", overrides=overrides)):
        found = changed.run.image_login
        assert (found and found.user) == user
