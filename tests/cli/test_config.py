"""The user's own file, and which store a command works on."""

from __future__ import annotations

import pytest

from cloudspot.cli.config import UserConfig, config_path, load_config
from cloudspot.errors import SpecError


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Return a function that writes the user's file."""
    path = tmp_path / "config.toml"
    monkeypatch.setenv("CLOUDSPOT_CONFIG", str(path))
    return path.write_text


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"CLOUDSPOT_CONFIG": "/a/c.toml", "XDG_CONFIG_HOME": "/x", "HOME": "/h"}, "/a/c.toml"),
        ({"XDG_CONFIG_HOME": "/x", "HOME": "/h"}, "/x/cloudspot/config.toml"),
        ({"XDG_CONFIG_HOME": "relative", "HOME": "/h"}, "/h/.config/cloudspot/config.toml"),
        ({"HOME": "/h"}, "/h/.config/cloudspot/config.toml"),
    ],
)
def test_the_file_is_where_the_environment_says(monkeypatch, environ, path):
    for name in ("CLOUDSPOT_CONFIG", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert str(config_path()) == path


def test_without_a_file_every_field_has_its_default(monkeypatch, tmp_path):
    monkeypatch.delenv("CLOUDSPOT_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert load_config() == UserConfig(default_store=None, stores={})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("default_stor = 'x'", "default_stor: unknown field; did you mean default_store?"),
        ("[store]\na = 'b'", "store: unknown field; did you mean stores?"),
        ("stores = 3", "stores: expected a table, got 3"),
        ("[stores]\na = 3", "stores.a: expected a string, got 3"),
        ("[stores]\na = 'b'", 'stores.a: "b" is not a URL; expected one such as file:///'),
        ("[stores]\na = 's3://k:hunter2@b'", "stores.a: must not contain credentials"),
        ("default_store = 'b'", 'default_store: "b" is not a URL; expected one such as file:///'),
        ("default_store = 'x'\n\n[stores", "line 3: "),
    ],
)
def test_what_is_wrong_with_the_file_is_named(write, tmp_path, text, message):
    write(text)
    with pytest.raises(SpecError) as error:
        load_config()
    assert str(error.value).startswith(f"{tmp_path}/config.toml: {message}")
    assert "hunter2" not in str(error.value)


def test_a_file_that_the_variable_names_must_be_there(tmp_path, monkeypatch):
    monkeypatch.setenv("CLOUDSPOT_CONFIG", str(tmp_path / "nowhere.toml"))
    with pytest.raises(SpecError, match=r"nowhere\.toml: no such file"):
        load_config()


# --- which store --------------------------------------------------------------------------------


@pytest.fixture
def used(jobs, tmp_path, write):
    """Return a function that gives the name of the store that ``plan`` would use."""
    stores = "".join(f'{name} = "file://{tmp_path}/{name}"\n' for name in ("mine", "yours", "default"))
    write(f'default_store = "default"\n[stores]\n{stores}')
    jobs.job_file.write_text(f'store = "file://{tmp_path}/in-the-file"\n' + jobs.job_file.read_text())

    def run(*arguments, variable="", before=()):
        jobs.store.url = variable
        plan = jobs.run_json(*before, "plan", str(jobs.job_file), *arguments)
        return plan["store"].rpartition("/")[2]

    return run


def test_the_store_is_the_option_the_variable_the_job_file_the_config_the_provider(
    used, jobs, write, tmp_path
):
    option, before, variable = ["--store", "mine"], ["--store", "yours"], f"file://{tmp_path}/variable"
    assert used(*option, before=before, variable=variable) == "mine"
    assert used(before=before, variable=variable) == "yours"
    assert used(variable=variable) == "variable"
    assert used(variable="yours") == "yours"
    assert used() == "in-the-file"
    jobs.job_file.write_text(jobs.job_file.read_text().partition("\n")[2])
    assert used() == "default"
    write("")
    assert used() == "store"


def test_ps_too_finds_the_store_by_its_name(jobs, write):
    jobs.submit("digits-abcd")
    url, jobs.store.url = jobs.store.url, ""
    write(f'[stores]\nmine = "{url}"')
    for arguments in (["ps", "--store", "mine"], ["--store", "mine", "ps"]):
        assert [job["id"] for job in jobs.run_json(*arguments)] == ["digits-abcd"]
    write(f'default_store = "{url}"')
    assert [job["id"] for job in jobs.run_json("ps")] == ["digits-abcd"]
    # The next command to type need not name the default.
    assert jobs.run("stop", "digits-abcd").stdout.splitlines()[-1] == (
        "wait for its end with: cloudspot attach digits-abcd"
    )


@pytest.mark.parametrize(
    ("arguments", "variable", "origin"),
    [
        (["ps", "--store", "mien"], "", "--store"),
        (["--store", "mien", "ps"], "", "--store"),
        (["ps"], "mien", "CLOUDSPOT_STORE"),
    ],
)
def test_a_name_that_is_not_there_is_named_with_the_right_one(
    jobs, write, tmp_path, arguments, variable, origin
):
    write(f'[stores]\nmine = "{jobs.store.url}"')
    jobs.store.url = variable
    assert jobs.run(*arguments, status=2).stderr == (
        f'error: {origin}: "mien" is neither a URL such as file:///data/jobs nor a store in '
        f'{tmp_path}/config.toml; did you mean "mine"?\n'
    )


def test_an_empty_name_is_no_store(jobs, write):
    write("")
    assert jobs.run("ps", "--store", "", status=2).stderr.startswith('error: --store: "" is neither a URL')


def test_an_error_that_names_a_store_says_who_named_it(jobs, write, tmp_path):
    url = jobs.store.url
    write(f'default_store = "{url}"')
    head = f"error: no job 'gone' in {url}; list them with: cloudspot ps --store {url}"
    assert jobs.run("show", "gone", status=5).stderr == f"{head} (this store: CLOUDSPOT_STORE)\n"
    assert jobs.run("show", "gone", "--store", url, status=5).stderr == f"{head}\n"
    jobs.store.url = ""
    assert jobs.run("show", "gone", status=5).stderr == (
        f"{head} (this store: default_store in {tmp_path}/config.toml)\n"
    )
    write("")
    assert jobs.run("show", "gone", status=7).stderr.endswith(
        "(this store: the default of the provider local)\n"
    )
