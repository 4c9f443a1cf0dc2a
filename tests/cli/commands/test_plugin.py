"""``cloudspot plugin``: a plugin to start from, whose tests show what is left, and the report on one."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from cloudspot import hookspecs, interfaces
from cloudspot.cli.commands.plugin import plugin
from cloudspot.cli.main import program
from cloudspot.testing import promises
from cloudspot.testing.kit import promises_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TESTS = Path(__file__).parents[2]
POINTS = "[cloudspot.providers]\n{name} = {module}\n[cloudspot.stores]\n{name} = {module}\n"


def new(*arguments, status=0):
    result = CliRunner().invoke(program, ["plugin", "new", *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result


def installed(site, name, module, requires=()):
    """Return an environment in which what lies in the directory is installed, as pip would have it."""
    info = site / f"{module}-0.1.0.dist-info"
    info.mkdir()
    lines = [f"Name: cloudspot-{name}", "Version: 0.1.0", *(f"Requires-Dist: {one}" for one in requires)]
    (info / "METADATA").write_text("\n".join(("Metadata-Version: 2.1", *lines, "")))
    (info / "entry_points.txt").write_text(POINTS.format(name=name, module=module))
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH")))),
    }


def run(environment, cwd, *words):
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=cwd, env=environment, capture_output=True, text=True
    )


# --- new ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scaffold(tmp_path_factory):
    directory = tmp_path_factory.mktemp("new") / "cloudspot-acme-2"
    new("acme-2", directory)
    return directory


def test_the_next_commands_are_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert new("acme").stdout.splitlines() == [
        "wrote cloudspot-acme; read its README.md first. Next:",
        "    cd cloudspot-acme",
        '    python -m pip install --editable ".[test]"',
        "    python -m pytest  # failures show what is left to do",
        "    cloudspot plugin check acme",
    ]


def test_the_distribution_is_complete(scaffold):
    written = {path.relative_to(scaffold).as_posix() for path in scaffold.rglob("*") if path.is_file()}
    modules = ("__init__", "provider", "provisioner", "metadata", "store", "logs")
    assert written == {
        "LICENSE",
        "cloudspot_acme_2/py.typed",
        "pyproject.toml",
        "tox.ini",
        "README.md",
        ".github/workflows/ci.yml",
        *(f"cloudspot_acme_2/{module}.py" for module in modules),
        *(f"tests/{module}.py" for module in ("account", "test_hooks", "test_kits")),
    }
    texts = {place: (scaffold / place).read_text() for place in written}
    assert [place for place, text in texts.items() if re.search(r"@[A-Z]+", text)] == []
    project = tomllib.loads(texts["pyproject.toml"])["project"]
    assert project["name"] == "cloudspot-acme-2"
    assert set(project["optional-dependencies"]) == {"test"}
    asked = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    assert [one for one in asked if "cloudspot" in one] == [], "whoever has the name there would be installed"
    assert [one for one in asked if not re.fullmatch(r"[a-z-]+>=[\d.]+,<\d+", one)] == []
    versions = [one.rpartition(" ")[2] for one in project["classifiers"] if " 3." in one]
    assert versions == ["3.10", "3.11", "3.12", "3.13"]
    assert (project["license-files"], set(project["urls"])) == (["LICENSE"], {"Repository", "Issues"})
    first_place = re.search(r"`([\w/]+)`", texts["README.md"])[1]
    assert (TESTS.parent / first_place / "account.py").exists(), "the smallest complete plugin"
    assert project["entry-points"] == {
        hookspecs.PROVIDER_GROUP: {"acme-2": "cloudspot_acme_2"},
        hookspecs.STORE_GROUP: {"acme-2": "cloudspot_acme_2"},
    }
    assert f"\ncloudspot_api_version = {hookspecs.API_VERSION}\n" in texts["cloudspot_acme_2/__init__.py"]


@pytest.mark.parametrize(
    "kind",
    [
        interfaces.Provider,
        interfaces.Provisioner,
        interfaces.PreemptionSource,
        interfaces.ObjectStore,
        interfaces.LogSink,
    ],
)
def test_every_method_that_a_plugin_must_have_is_there_with_its_promise(scaffold, kind):
    text = "\n".join(path.read_text() for path in scaffold.glob("cloudspot_acme_2/*.py"))
    for name in kind.__abstractmethods__:
        promise = inspect.getdoc(getattr(kind, name)).partition("\n")[0]
        heads = re.finditer(rf"^    def {name}\(", text, re.MULTILINE)
        said = [text[head.end() :].split('"""')[1] for head in heads]
        assert [one for one in said if one.startswith(promise)] != [], name


def test_the_kits_of_a_provider_are_all_wired(scaffold):
    text = (scaffold / "tests" / "test_kits.py").read_text()
    missing = [kit.__name__ for kit in promises.KITS if kit.__name__ not in text]
    assert missing == ["ImageHostTests"], "what a plugin may leave out"


@pytest.mark.full
def test_the_tests_fail_exactly_where_work_is_left(scaffold, tmp_path):
    environment = installed(scaffold, "acme-2", "cloudspot_acme_2")
    done = run(
        environment, scaffold, "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={tmp_path}/found"
    )
    cases = list(ET.parse(tmp_path / "found").iter("testcase"))
    passed = {case.get("name") for case in cases if len(case) == 0}
    broken = {case.get("name"): one.get("message") for case in cases for one in case}
    assert [name for name, message in broken.items() if "NotImplementedError: " not in message] == []
    assert passed == {
        "test_the_provider_is_found_by_its_name",
        "test_a_store_is_opened_by_its_scheme",
        "test_names_of_other_plugins_are_ignored",
        "test_it_is_found_by_its_name",
        "test_it_is_imported_in_50_ms_and_its_node_needs_no_sdk",
        "test_the_default_store_can_be_opened",
        "test_no_log_in_is_given_to_a_registry_of_others",
        "test_its_inventories_have_titles",
        "test_what_is_declared_is_there_and_nothing_else",
    }
    assert (done.returncode, len(broken) > 80) == (1, True), done.stdout


def test_nothing_that_exists_is_overwritten(tmp_path):
    (tmp_path / "tox.ini").write_text("mine")
    assert new("acme", tmp_path, status=2).stderr == (
        f"error: {tmp_path}/tox.ini already exists; name another directory\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["tox.ini"]
    assert (tmp_path / "tox.ini").read_text() == "mine"


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    assert f"{tmp_path}/file" in new("acme", tmp_path / "file" / "in", status=1).stderr


@pytest.mark.parametrize("name", ["Acme", "2acme", "acme_2", "acme-", "-acme", "a--b", "../acme", "", "é"])
def test_a_name_that_is_none_is_refused(tmp_path, name):
    assert "must consist of lower-case letters" in new("--", name, tmp_path / "x", status=2).stderr
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", ["local", "file", "aws", "gcp"])
def test_a_name_that_stands_is_refused(tmp_path, name):
    assert f'"{name}" is taken' in new(name, tmp_path / "x", status=2).stderr
    assert not (tmp_path / "x").exists()


def test_a_package_that_is_there_is_not_hidden_by_a_second(tmp_path, monkeypatch):
    (tmp_path / "cloudspot_acme.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert (
        "a package named cloudspot_acme is already installed" in new("acme", tmp_path / "x", status=2).stderr
    )


# --- check --------------------------------------------------------------------------------------

HOOKS = """
from support.worlds.memorycloud import MemoryProvider

from cloudspot.hookspecs import hookimpl


@hookimpl
def cloudspot_provider(name):
    return MemoryProvider if name == "memory" else None


@hookimpl
def cloudspot_object_store(url):
    return None
"""
KITS = """
import pytest
from support.worlds.memorycloud import MemoryAccount

from cloudspot.testing.logkit import LogSinkTests
from cloudspot.testing.providerkit import ProviderTests
from cloudspot.testing.provisionerkit import ProvisionerTests


class TestMachines(ProvisionerTests):
    deviations = {DEVIATIONS}

    @pytest.fixture
    def account(self):
        return MemoryAccount()


class TestAnotherPlugin(ProviderTests):
    name = "local"


def test_of_the_plugins_own():
    assert False, "no kit's test: it is not run"
"""
REASON = "the sky is too low"


@pytest.fixture
def memory(tmp_path):
    """The cloud in memory as an installed plugin, and how to check it with tests of this text."""
    site, tests = tmp_path / "site", tmp_path / "tests"
    site.mkdir()
    tests.mkdir()
    (site / "cloudspot_memory.py").write_text(HOOKS)
    environment = installed(site, "memory", "cloudspot_memory", ("msgspec>=0.1", "plot-sdk; extra == 'plot'"))
    environment["PYTHONPATH"] += os.pathsep + str(TESTS)

    def check(text, *words, status):
        (tests / "test_it.py").write_text(text)
        done = run(environment, tmp_path, "cloudspot", "plugin", "check", "memory", "--json", "found", *words)
        assert done.returncode == status, done.stdout + done.stderr
        return done, json.loads((tmp_path / "found").read_text())

    return check


def kits(deviations):
    return KITS.replace("{DEVIATIONS}", repr(deviations))


@pytest.mark.full
def test_a_report_says_what_was_run_with_what_and_what_was_not(memory):
    done, found = memory(kits({}), status=0)
    assert found["ok"] is True
    assert {"cloudspot", "python", "cloudspot-memory", "msgspec"} == set(found["versions"])
    assert found["versions"]["cloudspot-memory"] == "0.1.0"
    (row,) = found["kits"]
    assert (row["kit"], row["class"]) == ("ProvisionerTests", "tests/test_it.py::TestMachines")
    assert (row["skipped"], row["deviations"], row["failures"]) == ({}, {}, {})
    promised = promises_of(promises.ProvisionerTests)
    assert row["passed"] == len(promised)
    lines = done.stdout.splitlines()
    # Neither logs nor images are declared.
    others = [
        "ObjectStoreTests",
        "StoreFaultTests",
        "PurchaseTests",
        "OfferTests",
        "PreemptionSourceTests",
        "NodeIdentityTests",
        "ProviderTests",
        "WholeJobTests",
    ]
    assert found["not_tested"] == others, "the other plugin's ProviderTests say nothing about this one"
    assert lines[-len(others) :] == [f"not tested: {kit}" for kit in others]
    assert re.match(r"cloudspot \S+, python 3\.\S+, cloudspot-memory 0\.1\.0, msgspec \S+$", lines[0])
    assert lines[1] == "declares: preempt"
    assert lines[3].split() == [*("ProvisionerTests", row["class"]), str(len(promised)), "0", "0", "0", "0"]


@pytest.mark.full
def test_one_kit_is_run_alone(memory):
    _, found = memory(kits({}), "--kit", "ProvisionerTests", status=0)
    assert (found["ok"], [row["kit"] for row in found["kits"]]) == (True, ["ProvisionerTests"])
    assert found["not_tested"] == []
    _, found = memory(kits({}), "--kit", "OfferTests", status=1)
    assert (found["ok"], found["kits"], found["not_tested"]) == (False, [], ["OfferTests"])


@pytest.mark.full
def test_a_kit_that_does_not_exist_is_named(memory, tmp_path):
    with pytest.raises(AssertionError, match="there is no kit OfferTest; the kits are ObjectStoreTests, "):
        memory(kits({}), "--kit", "OfferTest", status=0)
    assert not (tmp_path / "found").exists()


@pytest.mark.full
def test_a_deviation_is_told_with_its_reason_and_is_no_failure(memory):
    promise = "test_a_machine_is_on_the_market_that_was_asked_for[spot]"
    text = kits({promise: REASON}).replace("ProvisionerTests", "PurchaseTests")
    text = text.replace("provisionerkit", "purchasekit").replace(
        "return MemoryAccount()", "return DearAccount()"
    )
    text += (
        "\n\nclass DearAccount(MemoryAccount):\n"
        "    def bought(self, instance_id):\n"
        "        import msgspec\n"
        "        from cloudspot.model import Market\n"
        "        return msgspec.structs.replace(super().bought(instance_id), market=Market.ON_DEMAND)\n"
    )
    done, found = memory(text, status=0)
    assert found["kits"][0]["deviations"] == {promise: REASON}
    assert f"deviates: PurchaseTests, {promise}: {REASON}" in done.stdout.splitlines()


@pytest.mark.full
def test_a_broken_promise_is_told_with_what_went_wrong(memory):
    text = kits({}).replace("return MemoryAccount()", "raise ValueError('no account')")
    done, found = memory(text, status=1)
    (row,) = found["kits"]
    assert row["passed"] == 0
    assert set(row["failures"].values()) == {"ValueError: no account"}
    num = len(row["failures"])
    assert num > 20
    lines = done.stdout.splitlines()
    first = lines.index(f"FAILED: ProvisionerTests, {num} promises: ValueError: no account")
    assert lines[first + 1 : first + 1 + num] == [f"    {promise}" for promise in row["failures"]]


@pytest.mark.full
def test_a_deviation_from_a_promise_that_is_kept_is_a_failure(memory):
    promise = "test_terminating_nothing_is_no_error"
    _, found = memory(kits({promise: REASON}), status=1)
    assert found["kits"][0]["failures"] == {promise: f"[XPASS(strict)] {REASON}"}


@pytest.mark.full
def test_a_promise_that_was_not_run_is_named_and_is_no_success(memory, tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -k 'not may_be_empty'\n")
    text = (
        "import pytest\n"
        "from cloudspot.testing.storekit import ObjectStoreTests\n"
        "class TestStore(ObjectStoreTests):\n"
        "    @pytest.fixture\n"
        "    def store(self):\n"
        "        pytest.skip('there is no network')\n"
    )
    done, found = memory(text, status=1)
    (row,) = found["kits"]
    assert (row["failures"], row["not_run"]) == ({}, ["test_a_stream_may_be_empty"])
    assert "not run: ObjectStoreTests, test_a_stream_may_be_empty: it was deselected" in done.stdout
    assert set(row["skipped"].values()) == {"Skipped: there is no network"}
    assert (
        f"skipped: ObjectStoreTests, {len(row['skipped'])} promises: Skipped: there is no network"
        in done.stdout
    )


@pytest.mark.full
def test_a_test_that_ends_the_process_leaves_what_came_before(memory):
    """A time limit, such as the scaffold's, ended it, and nothing of ten minutes' work was written."""
    text = (
        "import os\n"
        "import pytest\n"
        "from support.stores.memorystore import InMemoryStore\n"
        "from cloudspot.testing.storekit import ObjectStoreTests\n"
        "class TestStore(ObjectStoreTests):\n"
        "    @pytest.fixture\n"
        "    def store(self, request):\n"
        "        if 'may_be_empty' in request.node.name:\n"
        "            os._exit(7)\n"
        "        return InMemoryStore('mem://s')\n"
    )
    done, found = memory(text, status=1)
    (row,) = found["kits"]
    assert row["passed"] > 0
    assert "test_a_stream_may_be_empty" in row["not_run"]
    assert "test_a_stream_may_be_empty" not in row["failures"]
    (place,) = found["errors"]
    assert place.endswith("::test_a_stream_may_be_empty")
    assert f"FAILED: {place}: {promises.ENDED_EARLY}" in done.stdout


@pytest.mark.full
def test_tests_that_cannot_be_collected_are_a_failure(memory):
    done, found = memory("import no_such_module\n", status=1)
    assert found["kits"] == []
    assert "no_such_module" in found["errors"]["tests/test_it.py"]
    assert "FAILED: tests/test_it.py: " in done.stdout


@pytest.mark.full
def test_without_any_kit_nothing_is_proved(memory):
    _, found = memory("def test_a(): pass\n", status=1)
    assert (found["ok"], found["kits"], len(found["not_tested"])) == (False, [], len(promises.KITS) - 3)


@pytest.mark.full
def test_several_processes_make_the_same_report(memory, tmp_path):
    _, alone = memory(kits({}), status=0)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -n 2\n")
    _, found = memory(kits({}), status=0)
    assert found == alone


def test_a_plugin_that_is_not_installed_is_named(tmp_path):
    result = CliRunner().invoke(program, ["plugin", "check", "nowhere", "--tests", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (3, "")
    assert 'no provider "nowhere" is installed' in result.stderr


def test_without_pytest_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "cloudspot.cli.authoring.kitrun.find_spec", lambda name: None if name == "pytest" else name
    )
    result = CliRunner().invoke(program, ["plugin", "check", "local", "--tests", str(tmp_path)])
    assert (result.exit_code, result.stderr) == (1, "error: the kits need pytest; run: pip install pytest\n")


def test_a_directory_without_tests_is_named(tmp_path):
    result = CliRunner().invoke(program, ["plugin", "check", "local", "--tests", str(tmp_path / "none")])
    assert result.exit_code == 2
    assert f"{tmp_path}/none" in result.stderr
    assert plugin.commands.keys() == {"new", "check"}
