"""Ways to be a broken plugin, tried from the real command line: one line that names it, and others go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import cloudspot
from cloudspot import hookspecs
from cloudspot.jobfile.spec import load_job
from cloudspot.jobstore.jobs.submission import submit
from cloudspot.local.filestore import FileStore
from cloudspot.registry import LISTED_SECONDS

pytestmark = pytest.mark.full

JOB = """
name = "digits"
[run]
entrypoint = "train.py"
[spot]
policy = "{policy}"
[notify]
urls = {urls}
through = "{notifier}"
"""
PROVIDER = """
from cloudspot.hookspecs import hookimpl
from cloudspot.local.options import LocalOptions
from cloudspot.local.provider import LocalProvider
from cloudspot.local.provisioner import LocalProvisioner

class Sky(LocalProvider):
    name = "{name}"

@hookimpl
def cloudspot_provider(name):
    return Sky
"""
STORE = """
from cloudspot.hookspecs import hookimpl
from cloudspot.jobfile.spec import load_job
from cloudspot.jobstore.jobs.submission import submit
from cloudspot.local.filestore import FileStore

class Sea(FileStore):
    pass

@hookimpl
def cloudspot_object_store(url):
    return Sea(url.replace("{name}:", "file:"))
"""


def changed(old, new, code=PROVIDER):
    assert old in code
    return code.replace(old, new)


def method(text):
    """Return a provider with this method."""
    return changed("\n\n@hookimpl", f"\n    {text}\n\n@hookimpl")


def provisioner(text):
    """Return a provider whose provisioner has this method."""
    made = f"        class Rain(LocalProvisioner):\n            {text}\n"
    made += "        found = super().provisioner()\n        found.__class__ = Rain\n        return found"
    return method(f"def provisioner(self):\n{made}")


class Site:
    """A directory with plugins, as pip would have installed them, and a job."""

    def __init__(self, path):
        self.path = path
        self.environ = {
            **{name: value for name, value in os.environ.items() if name in {"PATH", "LANG", "VIRTUAL_ENV"}},
            "PYTHONPATH": os.pathsep.join((str(path), *filter(None, sys.path))),
            "CLOUDSPOT_LOCAL_HOME": str(path / "local"),
            "CLOUDSPOT_CONFIG": "",
            "HOME": str(path),
            "COLUMNS": "400",
        }
        (path / "train.py").touch()

    def install(self, name, code, *, group="providers", named=None):
        module = f"cloudspot_{name.replace('-', '_')}"
        if code is not None:
            (self.path / f"{module}.py").write_text(textwrap.dedent(code).replace("{name}", name))
        info = self.path / f"cloudspot_{name}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: cloudspot-{name}\nVersion: 1.2\n")
        point = named or f"{name} = {module}"
        (info / "entry_points.txt").write_text(f"[cloudspot.{group}]\n{point}\n")

    def job(self, *, policy="spot", notifier="apprise"):
        urls = '["https://example.com/hunter2"]' if notifier != "apprise" else "[]"
        path = self.path / "job.toml"
        path.write_text(JOB.format(policy=policy, notifier=notifier, urls=urls))
        return str(path)

    def start(self, *arguments):
        return subprocess.Popen(
            [sys.executable, "-m", "cloudspot", *arguments],
            env=self.environ,
            cwd=self.path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments):
        program = self.start(*arguments)
        out, told = program.communicate(timeout=120)
        return program.returncode, out, told


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


# --- what is not even a plugin --------------------------------------------------------------------

UNUSABLE = {
    "absent": (None, "its entry point names the missing module cloudspot_absent"),
    "raises": ("raise RuntimeError('two\\nlines')", "its module raised RuntimeError: two lines"),
    "exits": ("import sys; sys.exit(3)", "its module raised SystemExit: 3"),
    "needs": ("import no_such_sdk", "its module raised ModuleNotFoundError: No module named 'no_such_sdk'"),
    "typo": ("x = (", "its module raised SyntaxError: "),
    "hangs": ("import time; time.sleep(600)", f"importing it takes longer than {LISTED_SECONDS:g} s"),
    "empty": ("", "the hook cloudspot_provider in its module cloudspot_empty is missing"),
    "unmarked": (changed("@hookimpl\n", ""), "cloudspot_unmarked is not marked with @hookimpl"),
    "misspelt": (
        changed("def cloudspot_provider", "def cloudspot_provdier"),
        "it has no hook cloudspot_provdier; did you mean cloudspot_provider?",
    ),
    "other": (
        changed("provider(name)", "provider(region)"),
        "its hooks have wrong arguments: Argument(s) {'region'}",
    ),
    "hook": (changed("return Sky", "return 1 / 0"), "its hook cloudspot_provider raised ZeroDivisionError"),
    "nothing": (
        changed("return Sky", "return None"),
        'its hook cloudspot_provider returned None for "nothing"',
    ),
    "made": (
        changed("return Sky", "return Sky(LocalOptions())"),
        "returned an instance of Sky, not the class",
    ),
    "another": (changed("return Sky", "return dict"), "dict is not a subclass of Provider"),
    "halfway": (
        changed("(LocalProvider):", "(__import__('cloudspot').interfaces.Provider):"),
        "Sky lacks boot_profile, node_identity, preemption_source, provisioner",
    ),
    "named": (
        changed('name = "{name}"', 'name = "sky"'),
        "Sky.name is 'sky', not \"named\" as in its entry point",
    ),
    "options": (
        changed('name = "{name}"', 'name = "{name}"\n    options_type = dict'),
        "Sky.options_type is the class dict, not type[Struct]",
    ),
    "old": (
        f"cloudspot_api_version = 1\n{PROVIDER}",
        (
            f"is written for version 1 of cloudspot's interfaces, but cloudspot {cloudspot.__version__} has version 2; "
            "upgrade cloudspot-old"
        ),
    ),
    "new": (f"cloudspot_api_version = {hookspecs.API_VERSION + 1}\n{PROVIDER}", "; upgrade cloudspot"),
}


def test_each_plugin_that_cannot_be_used_is_listed_with_its_reason_and_the_others_work(site):
    for name, (code, _) in UNUSABLE.items():
        site.install(name, code)
    site.install("class", PROVIDER, named="class = cloudspot_class:Sky")
    for name in ("twin-a", "twin-b"):
        site.install(name, PROVIDER, named="twin = cloudspot_twin_a")
    site.install("printer", f"print('welcome', flush=True)\n{PROVIDER}")
    began = time.monotonic()
    status, out, told = site.run("providers", "list", "--json")
    assert time.monotonic() - began < 60, "one that hangs delays the list by its few seconds alone"
    assert (status, told) == (0, "welcome\n")
    listed = {one["distribution"]: one["error"] for one in json.loads(out)}
    for name, (_, reason) in UNUSABLE.items():
        error = listed.pop(f"cloudspot-{name}")
        assert reason in error
        assert f'"{name}" of cloudspot-{name} 1.2 ' in error
        assert "\n" not in error
    assert "it must name the module alone: cloudspot_class" in listed.pop("cloudspot-class")
    for name in ("twin-a", "twin-b"):
        assert (
            listed.pop(f"cloudspot-{name}")
            == 'cloudspot-twin-a and cloudspot-twin-b both provide "twin"; uninstall one of them'
        )
    assert listed.pop("cloudspot") is None
    assert listed.pop("cloudspot-printer") is None


# --- what fails when it is used -------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A broken plugin, a command that uses it, and what that says."""

    code: str
    command: str
    says: str
    status: int = 3
    group: str = "providers"


SKY = 'provider "sky" of cloudspot-sky 1.2 is broken: '
PLAN = "plan {job} --provider sky"
CASES = {
    "its options raise": Case(
        changed(
            "class Sky",
            "class Own(LocalOptions, frozen=True):\n    def __post_init__(self): 1 / 0\n\nclass Sky",
        ).replace('name = "{name}"', 'name = "{name}"\n    options_type = Own'),
        PLAN,
        SKY + "making it raised ZeroDivisionError: division by zero",
    ),
    "making it raises": Case(
        method("def __init__(self, options): raise KeyError('x')"),
        PLAN,
        SKY + "making it raised KeyError: 'x'",
    ),
    "it makes no provisioner": Case(
        method("def provisioner(self): return None"),
        PLAN,
        SKY + "Provider.provisioner() returned None, not Provisioner",
    ),
    "its provisioner lacks an attribute": Case(
        changed(
            "\n\n@hookimpl",
            """
    def provisioner(self):
        from cloudspot.interfaces import Provisioner
        return type("Rain", (Provisioner,), dict.fromkeys(Provisioner.__abstractmethods__, print))()

@hookimpl""",
        ),
        PLAN,
        SKY + "Rain has no token_seconds",
    ),
    "its offers raise": Case(
        provisioner("def offers(self, request): raise AttributeError('sdk')"),
        PLAN,
        SKY + "Provisioner.offers() raised AttributeError: sdk",
    ),
    "its offers are of another type": Case(
        provisioner("def offers(self, request): return [1]"),
        PLAN,
        SKY + "Provisioner.offers() returned list[int], not OffersResult",
    ),
    "its offers end the process": Case(
        provisioner("def offers(self, request): raise SystemExit(0)"),
        PLAN,
        SKY + "Provisioner.offers() raised SystemExit: 0",
    ),
    "its offers take other arguments": Case(
        provisioner("def offers(self, *, resources): return []"),
        PLAN,
        SKY + "Provisioner.offers() raised TypeError: ",
    ),
    "it renders nothing": Case(
        provisioner("def render(self, group): return None"),
        PLAN,
        SKY + "Provisioner.render() returned None, not LaunchRequest",
    ),
    "its pinned options raise": Case(
        method("def pinned_options(self): raise IndexError('no region')"),
        PLAN,
        SKY + "Provider.pinned_options() raised IndexError: no region",
    ),
    "its checks raise": Case(
        method("def check(self, request): return undefined"),
        "providers check sky",
        SKY + "Provider.check() raised NameError: name 'undefined' is not defined",
    ),
    "its checks are texts": Case(
        method("def check(self, request): return ['ok']"),
        "providers check sky",
        SKY + "Provider.check() returned list[str], not CheckResults",
    ),
    "its boot profile is of another type": Case(
        method("def boot_profile(self): return {}"),
        PLAN,
        SKY + "Provider.boot_profile() returned dict, not BootProfile",
    ),
    "its store is none": Case(
        changed("return Sea(", "return dict(url=", STORE),
        "ps --store sky:///tmp/hunter2",
        'store plugin "sky" of cloudspot-sky 1.2 is broken: its hook cloudspot_object_store returned dict, not an '
        "instance of ObjectStore",
        group="stores",
    ),
    "its listing raises": Case(
        changed("    pass", "    def list_page(self, *args, **options): raise LookupError('page')", STORE),
        "ps --store sky:///tmp",
        'store plugin "sky" of cloudspot-sky 1.2 is broken: ObjectStore.list_page() raised LookupError: page',
        group="stores",
    ),
    "its pages are texts": Case(
        changed("    pass", "    def list_page(self, *args, **options): return 'text'", STORE),
        "ps --store sky://{here}/local/store",
        'store plugin "sky" of cloudspot-sky 1.2 is broken: ObjectStore.list_page() returned str, not ObjectPage',
        group="stores",
    ),
    "its command's module exits": Case(
        "raise SystemExit(0)",
        "sky",
        'command "sky" of cloudspot-sky 1.2 is broken: its module raised SystemExit: 0',
        group="commands",
    ),
    "its sandbox is none": Case(
        "from cloudspot.hookspecs import hookimpl\n@hookimpl\ndef cloudspot_sandbox(name): return object",
        "sandbox sky -- true",
        'sandbox "sky" of cloudspot-sky 1.2 is broken: object is not a subclass of EmulatedCloud',
        group="sandboxes",
    ),
    "its policy raises": Case(
        """
        from cloudspot.hookspecs import hookimpl
        from cloudspot.market.plugin_policy import PluginPolicy

        class Sky(PluginPolicy):
            name = "sky"
            def choose(self, situation): raise OverflowError("price")

        @hookimpl
        def cloudspot_market_policy(name): return Sky
        """,
        "simulate --length 1h --policy sky",
        'market policy "sky" of cloudspot-sky 1.2 is broken: PluginPolicy.choose() raised OverflowError: price',
        group="policies",
    ),
    "its notifier quotes the url": Case(
        """
        from cloudspot.hookspecs import hookimpl
        from cloudspot.interfaces import Notifier

        class Sky(Notifier):
            name = "sky"
            def holds_credential(self, url): raise KeyError(url)
            def send(self, url, message): ...

        @hookimpl
        def cloudspot_notifier(name): return Sky
        """,
        "run {job} --detach",
        'notifier "sky" of cloudspot-sky 1.2 is broken: Notifier.holds_credential() raised KeyError',
        group="notifiers",
    ),
}


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_a_plugin_that_fails_in_use_is_named_in_one_line(site, case):
    site.install("sky", case.code, group=case.group)
    FileStore(f"file://{site.path}/local/store").establish()
    job = site.job(
        policy="sky" if case.group == "policies" else "spot",
        notifier="sky" if case.group == "notifiers" else "apprise",
    )
    status, out, told = site.run(*(word.format(job=job, here=site.path) for word in case.command.split()))
    assert (status, out) == (case.status, ""), told
    (line,) = told.splitlines()
    assert line.startswith(f"error: {case.says}")
    assert "hunter2" not in line


HOOKS = {
    "providers": ("cloudspot_provider", "plan {job} --provider sky", "provider"),
    "stores": ("cloudspot_object_store", "ps --store sky://bucket", "store plugin"),
    "sandboxes": ("cloudspot_sandbox", "sandbox sky -- true", "sandbox"),
    "policies": ("cloudspot_market_policy", "simulate --length 1h --policy sky", "market policy"),
    "notifiers": ("cloudspot_notifier", "run {job} --detach", "notifier"),
    "trackers": ("cloudspot_tracker", 'run {job} --detach --set run.trackers=["sky"]', "tracker"),
    "commands": ("cloudspot_command", "sky", "command"),
}


@pytest.mark.parametrize("group", HOOKS)
def test_each_hook_that_raises_is_told_in_one_line(site, group):
    hook, command, kind = HOOKS[group]
    about = "url" if group == "stores" else "name"
    raises = f"@hookimpl\ndef {hook}({about}): raise EOFError('no more')\n"
    site.install("sky", f"from cloudspot.hookspecs import hookimpl\n{raises}", group=group)
    job = site.job(notifier="sky" if group == "notifiers" else "apprise")
    status, out, told = site.run(*(word.format(job=job) for word in command.split()))
    assert (status, out) == (3, ""), told
    text = ": no more" if group != "notifiers" else ""
    assert (
        told == f'error: {kind} "sky" of cloudspot-sky 1.2 is broken: its hook {hook} raised EOFError{text}\n'
    )


def test_what_a_plugin_prints_is_no_part_of_an_answer(site):
    print_and = changed("LocalProvisioner\n", "LocalProvisioner\nprint('imported')\n")
    site.install(
        "sky",
        changed(
            "\n\n@hookimpl",
            "\n    def pinned_options(self):\n        print('asked')\n        return {}\n\n@hookimpl",
            print_and,
        ),
    )
    status, out, told = site.run("plan", site.job(), "--provider", "sky", "--json")
    assert status == 0, told
    assert json.loads(out)
    assert {line for line in told.splitlines() if not line.startswith("warning: ")} == {"imported", "asked"}


def wait_until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_ctrl_c_ends_a_command_at_once_while_a_plugin_hangs(site):
    code = provisioner(
        "def offers(self, request):\n                open('hangs', 'w').close()\n                __import__('time').sleep(600)"
    )
    site.install("sky", code)
    program = site.start("plan", site.job(), "--provider", "sky")
    wait_until((site.path / "hangs").exists)
    began = time.monotonic()
    program.send_signal(signal.SIGINT)
    program.communicate(timeout=30)
    assert program.returncode == 130
    assert time.monotonic() - began < 10


def test_a_pass_drives_the_jobs_of_others_while_a_plugin_hangs(site):
    listing = "def instances(self, request):\n                open('hangs', 'w').close()\n"
    site.install("sky", provisioner(f"{listing}                __import__('time').sleep(600)"))
    store = FileStore(f"file://{site.path}/store")
    store.establish()
    for job_id, provider in (("first", "sky"), ("second", "local")):
        submit(
            store,
            spec=load_job(Path(site.job())),
            provider=provider,
            workdir=site.path,
            environ={},
            job_id=job_id,
        )
    program = site.start("reconcile", "--store", store.url)
    told = program.stderr.readline()
    # It was submitted by another home than the program's; what counts is that it was its turn.
    assert told.startswith("error: second: job 'second' in file://"), told
    wait_until((site.path / "hangs").exists)
    assert program.poll() is None
    program.send_signal(signal.SIGINT)
    program.communicate(timeout=30)
    assert program.returncode == 130
