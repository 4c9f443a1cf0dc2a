"""What a setup writes into the user's config file, and takes out again."""

import pytest

from cloudspot.cli.account.configfile import withdraw_settings, write_settings
from cloudspot.cli.config import CONFIG_VARIABLE, load_config
from cloudspot.errors import SpecError
from cloudspot.model import SetupSettings

SETTINGS = SetupSettings(store_url="s3://b", options={"region": "us-east-1", "security_groups": ["sg-1"]})
MINE = """# my own words
default_store = "work"   # stays

[stores]
work = "s3://theirs"

[providers.aws]
zones = ["us-east-1a"]
"""


@pytest.fixture
def path(tmp_path, monkeypatch):
    found = tmp_path / "deep" / "config.toml"
    monkeypatch.setenv(CONFIG_VARIABLE, str(found))
    return found


def test_a_new_file_names_the_store_and_the_options(path):
    lines = write_settings(path, "aws", SETTINGS)
    assert lines == [
        "stores.aws = s3://b",
        "default_store = aws",
        'providers.aws.region = "us-east-1"',
        'providers.aws.security_groups = ["sg-1"]',
    ]
    config = load_config()
    assert (config.default_store, config.stores) == ("aws", {"aws": "s3://b"})
    assert config.providers == {"aws": dict(SETTINGS.options)}
    withdraw_settings(path, "aws", SETTINGS)
    assert path.read_text().strip() == ""


def test_the_lines_of_a_file_that_is_there_stay_as_they_are(path):
    path.parent.mkdir()
    path.write_text(MINE)
    lines = write_settings(path, "aws", SETTINGS)
    assert lines[1] == "default_store = work (kept; use the new one with --store aws)"
    text = path.read_text()
    assert "# my own words" in text
    assert 'default_store = "work"   # stays' in text
    assert load_config().providers["aws"] == {"zones": ["us-east-1a"], **SETTINGS.options}
    assert write_settings(path, "aws", SETTINGS) == lines
    assert path.read_text() == text
    withdraw_settings(path, "aws", SETTINGS)
    assert path.read_text() == MINE


def test_what_somebody_has_changed_since_is_not_taken_out(path):
    write_settings(path, "aws", SETTINGS)
    other = SetupSettings(
        store_url="s3://other", options={"region": "eu-west-1", "security_groups": ["sg-1"]}
    )
    withdraw_settings(path, "aws", other)
    config = load_config()
    assert config.stores == {"aws": "s3://b"}
    assert config.providers == {"aws": {"region": "us-east-1"}}


def test_a_link_to_the_file_stays_a_link(path):
    path.parent.mkdir()
    real = path.with_name("elsewhere.toml")
    real.write_text(MINE)
    path.symlink_to(real)
    write_settings(path, "aws", SETTINGS)
    assert path.is_symlink()
    assert "s3://b" in real.read_text()


def test_a_file_that_is_no_toml_is_left_alone(path):
    path.parent.mkdir()
    path.write_text("[stores\n")
    with pytest.raises(SpecError, match=r"config\.toml cannot be read"):
        write_settings(path, "aws", SETTINGS)
    assert path.read_text() == "[stores\n"
