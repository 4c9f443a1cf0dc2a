"""``cloudspot setup``: what it shows, asks, makes and removes; the account is a directory, and each part a file."""

import pytest

from cloudspot.cli import config
from cloudspot.cli.commands import setup as command_module
from cloudspot.errors import AuthError, SpecError
from cloudspot.interfaces import AccountSetup
from cloudspot.jobstore.jobs.state_home import HOME
from cloudspot.model import Capability, CheckResult, PartState, SetupSettings
from cloudspot.plugin.sdkerrors import SdkErrors
from cloudspot.plugin.setupparts import CloudPart
from cloudspot.registry import open_provider


class NoErrors(SdkErrors):
    raised = ()
    cloud = "the directory"

    def translation(self, error, what, codes=()):
        raise NotImplementedError

    def code_of(self, error):
        return ""

    def status_of(self, error):
        return 0

    def message_of(self, error):
        return str(error)


class FilePart(CloudPart):
    """A file with a text; whatever else it holds is excess."""

    provider = "local"
    errors = NoErrors()

    def __init__(self, directory, name, **more):
        super().__init__("file", name, f"holds {name}", commands=[f"touch {name}"], **more)
        self._path = directory / name

    def state(self, *, is_own):
        if not self._path.exists():
            return PartState(exists=False)
        text = self._path.read_text()
        lacks = () if text else ("it is empty",)
        return PartState(exists=True, excess=("it is wide",) if text == "wide" else (), lacks=lacks)

    def create(self):
        if self._path.name == "forbidden":
            raise AuthError("access denied")
        self._path.write_text("narrow")

    def delete(self):
        self._path.unlink(missing_ok=True)


class Directory(AccountSetup):
    def __init__(self, path):
        self.path = path
        self.names = ["one", "two"]
        self.asked = []

    def account(self):
        return "account 1"

    def parts(self, request):
        self.asked.append(request)
        if "nobody" in request.grant_to:
            raise SpecError("--grant-to nobody: there is no such user")
        people = [FilePart(self.path, f"grant-{one}") for one in request.grant_to]
        rights = ("reads: file:Read",)
        return [
            FilePart(self.path, self.names[0], rights=rights),
            *(FilePart(self.path, one) for one in self.names[1:]),
            *people,
        ]

    def settings(self, request):
        return SetupSettings(options={"notice": "6s"}, notes=("ask for a quota",))


@pytest.fixture
def account(tmp_path, monkeypatch):
    path = tmp_path / "account"
    path.mkdir()
    found = Directory(path)

    def opened(name, overrides):
        provider = open_provider(name, None)
        monkeypatch.setattr(type(provider), "account_setup", lambda _self: found)
        monkeypatch.setattr(type(provider), "capabilities", frozenset({Capability.SETUP}))
        return provider

    checks = [CheckResult(name="rights", ok=True)]
    monkeypatch.setattr(command_module, "open_overridden", opened)
    monkeypatch.setattr(command_module, "check_all", lambda *_: checks)
    monkeypatch.setenv(HOME, str(tmp_path / "state"))
    monkeypatch.setenv(config.CONFIG_VARIABLE, str(tmp_path / "config.toml"))
    found.config = tmp_path / "config.toml"
    found.checks = checks
    return found


def files(account):
    return {one.name: one.read_text() for one in account.path.iterdir()}


def test_a_dry_run_shows_each_part_with_its_reason_and_makes_nothing(jobs, account):
    said = jobs.run("setup", "local", "--dry-run").stdout
    assert said == (
        "account account 1\n"
        "    make  file one: holds one (no charge)\n"
        "          - reads: file:Read\n"
        "    make  file two: holds two (no charge)\n"
    )
    assert files(account) == {}


def test_the_commands_are_printed_alone_and_nothing_is_made(jobs, account):
    said = jobs.run("setup", "local", "--print", "commands").stdout
    assert said == "# file one: holds one\ntouch one\n# file two: holds two\ntouch two\n"
    assert files(account) == {}


def test_it_asks_before_it_makes_anything(jobs, account):
    refused = jobs.run("setup", "local", status=2)
    assert "give --yes to make them" in refused.stderr
    assert files(account) == {}


def test_it_makes_the_parts_writes_the_config_file_and_checks(jobs, account):
    said = jobs.run("setup", "local", "--grant-to", "ada", "--yes")
    assert files(account) == dict.fromkeys(("one", "two", "grant-ada"), "narrow")
    assert "made file one\nmade file two\nmade file grant-ada\n" in said.stdout
    assert 'notice = "6s"' in account.config.read_text()
    assert said.stdout.endswith("ok      rights\n")
    assert "ask for a quota" in said.stderr
    account.checks[:] = [
        CheckResult(name="rights", ok=False, remedy="an administrator runs: cloudspot setup")
    ]
    again = jobs.run("setup", "local", "--yes", status=1)
    assert again.stdout.count("    keep  ") == 3  # ada is remembered
    assert again.stdout.endswith("FAILED  rights: an administrator runs: cloudspot setup\n")


def test_what_is_wider_is_refused_before_anything_is_made(jobs, account):
    (account.path / "two").write_text("wide")
    (account.path / "one").write_text("")
    refused = jobs.run("setup", "local", "--yes", status=1)
    assert "   adopt  file one" in refused.stdout
    assert "          lacks: it is empty" in refused.stdout
    assert "  refuse  file two" in refused.stdout
    assert "          ! it is wide" in refused.stdout
    assert "nothing was made: file two: it is wide" in refused.stderr
    assert files(account) == {"one": "", "two": "wide"}


def test_a_part_that_cannot_be_made_is_named_and_the_rest_is_made_by_the_next_run(jobs, account):
    account.names = ["one", "forbidden"]
    failed = jobs.run("setup", "local", "--yes", status=4)
    assert "access denied; run this as an administrator of the account" in failed.stderr
    assert files(account) == {"one": "narrow"}
    account.names = ["one", "two"]
    (account.path / "one").write_text("")
    said = jobs.run("setup", "local", "--yes").stdout
    assert "complete  file one" in said
    assert files(account) == {"one": "narrow", "two": "narrow"}


def test_removing_takes_what_it_has_made_and_nothing_else(jobs, account):
    (account.path / "one").write_text("theirs")
    jobs.run("setup", "local", "--grant-to", "ada", "--yes")
    assert jobs.run("setup", "local", "--remove", "--dry-run").stdout == (
        "remove file grant-ada\nremove file two\n"
    )
    assert jobs.run("setup", "local", "--remove", "--yes").stdout.endswith(
        "removed file grant-ada\nremoved file two\n"
    )
    assert files(account) == {"one": "theirs"}
    assert account.config.read_text().strip() == ""
    assert "no parts of this account are recorded" in jobs.run("setup", "local", "--remove").stdout


def test_a_part_that_another_version_has_made_is_named(jobs, account):
    jobs.run("setup", "local", "--yes")
    account.names = ["one"]
    failed = jobs.run("setup", "local", "--remove", "--yes", status=1)
    assert "file two: made by another version of cloudspot; remove it by hand" in failed.stderr
    assert files(account) == {"one": "narrow", "two": "narrow"}


def test_whoever_cannot_be_given_rights_is_an_error_before_anything(jobs, account):
    assert "no such user" in jobs.run("setup", "local", "--grant-to", "nobody", "--yes", status=2).stderr
    assert files(account) == {}


def test_an_alarm_needs_an_amount_and_an_address(jobs, account):
    assert (
        "--budget and --warn belong together" in jobs.run("setup", "local", "--budget", "5", status=2).stderr
    )
    jobs.run("setup", "local", "--budget", "5", "--warn", "ada@example.com", "--dry-run")
    assert (account.asked[-1].monthly_limit, account.asked[-1].warn) == (5.0, "ada@example.com")


def test_a_provider_without_an_account_says_so(jobs):
    assert "has no account to set up" in jobs.run("setup", "local", status=1).stderr
