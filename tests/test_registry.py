"""Plugins, found and judged as pip would have installed them."""

from __future__ import annotations

import importlib
import re
import sys
import textwrap
from importlib import metadata

import pytest

import cloudspot
from cloudspot.errors import PluginError, SpecError
from cloudspot.jobfile.spec import load_job
from cloudspot.registry import (
    ProviderEntry,
    close_stores,
    list_providers,
    open_provider,
    open_store,
    provider_class,
    sandbox_class,
)

GOOD = """
    import msgspec
    from cloudspot.hookspecs import hookimpl
    from cloudspot.interfaces import Provider, ObjectStore

    class Options(msgspec.Struct, frozen=True):
        region: str = "home"

    class Sky(Provider):
        name = "sky"
        options_type = Options
        def provisioner(self): ...
        def preemption_source(self): ...
        def node_identity(self): ...
        def boot_profile(self): ...

    class Store(ObjectStore):
        def __init__(self, url): self.url = url
        def put(self, key, data, *, if_absent=False): ...
        def get(self, key): ...
        def get_range(self, key, start, length): ...
        def head(self, key): ...
        def list_page(self, prefix, *, after=None, limit=1000): ...
        def delete(self, key): ...
        def open_upload(self, key, *, if_absent=False): ...
        def presign_get(self, key, *, seconds): ...

    @hookimpl
    def cloudspot_provider(name):
        return Sky if name == "sky" else None

    @hookimpl
    def cloudspot_object_store(url):
        return Store(url) if url.startswith("sky://") else None
"""


@pytest.fixture(autouse=True)
def nothing_else_installed(monkeypatch):
    """Hide the plugins that are installed beside cloudspot where the tests run: they bring their own."""
    distributions = metadata.distributions
    installed = {
        one.metadata["Name"]
        for one in distributions()
        if any(point.group.startswith("cloudspot.") for point in one.entry_points)
    }
    monkeypatch.setattr(
        metadata,
        "distributions",
        lambda **context: [one for one in distributions(**context) if one.metadata["Name"] not in installed],
    )


class Site:
    """A directory on sys.path, such as site-packages."""

    def __init__(self, path):
        self.path = path
        self.modules = []

    def install(self, distribution, *, module=None, code=GOOD, version="1.2", entry_points=None, metadata=""):
        """Put a distribution there, with its module and its metadata."""
        name = module or distribution.replace("-", "_")
        self.modules.append(name)
        (self.path / f"{name}.py").write_text(textwrap.dedent(code))
        info = self.path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n{metadata}"
        )
        if entry_points is None:
            entry_points = f"[cloudspot.providers]\nsky = {name}\n[cloudspot.stores]\nsky = {name}\n"
        (info / "entry_points.txt").write_text(entry_points)
        importlib.invalidate_caches()


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    site = Site(tmp_path)
    yield site
    for module in site.modules:
        sys.modules.pop(module, None)


def others():
    return [entry for entry in list_providers() if entry.distribution != "cloudspot"]


def only(provider):
    return f"[cloudspot.providers]\n{provider} = "


def test_the_built_in_provider_is_found_without_any_metadata():
    assert provider_class("local").name == "local"
    assert list_providers()[0] == ProviderEntry("local", "cloudspot", cloudspot.__version__, None)


def test_the_built_in_store_opens_a_directory(tmp_path):
    store = open_store(f"file://{tmp_path}")
    store.put("a", b"1")
    assert store.get("a") == b"1"


@pytest.mark.full
def test_a_plugin_is_found_by_its_entry_point(site):
    site.install("cloudspot-sky")
    assert provider_class("sky").__module__ == "cloudspot_sky"
    assert others() == [ProviderEntry("sky", "cloudspot-sky", "1.2", None)]


def test_a_plugin_is_imported_only_when_it_is_used(site):
    site.install("cloudspot-sky")
    site.install("cloudspot-sea", entry_points=only("sea") + "cloudspot_sea")
    provider_class("sky")
    assert "cloudspot_sky" in sys.modules
    assert "cloudspot_sea" not in sys.modules


def test_a_plugin_is_not_imported_for_the_built_in_ones(site, tmp_path):
    site.install("cloudspot-sky", code="raise SystemExit('imported')")
    provider_class("local")
    open_store(f"file://{tmp_path}")


@pytest.mark.full
def test_the_options_come_from_the_jobs_table(site, tmp_path):
    site.install("cloudspot-sky")
    job = tmp_path / "job.toml"
    job.write_text('name = "a"\n[run]\nentrypoint = "train.py"\n[providers.sky]\nregion = "north"\n')
    assert open_provider("sky", load_job(job)).options.region == "north"
    assert open_provider("sky", None).options.region == "home"
    with pytest.raises(
        SpecError, match=r"^providers\.sky\.reigon: unknown field; did you mean providers\.sky\.region"
    ):
        open_provider("sky", load_job(job, overrides=["providers.sky.reigon=x"]))


def test_a_store_is_opened_by_its_scheme(site):
    site.install("cloudspot-sky")
    assert open_store("sky://bucket/jobs").url == "sky://bucket/jobs"


# --- what is missing ----------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("open_it", [provider_class, lambda name: sandbox_class(name, object)])
def test_a_missing_plugin_that_does_not_come_with_cloudspot_is_not_named_for_pip(open_it):
    """Whoever registered the name would be run."""
    with pytest.raises(
        PluginError, match=r"^no (provider|sandbox) \"nowhere\" is installed; the known ones are "
    ) as error:
        open_it("nowhere")
    assert "pip" not in str(error.value)


@pytest.mark.full
def test_a_missing_plugin_that_comes_with_cloudspot_is_named_by_its_path(site):
    extra = "Provides-Extra: aws\nRequires-Dist: cloudspot-aws>=1; extra == 'aws'\n"
    site.install("cloudspot", module="unused", version=cloudspot.__version__, entry_points="", metadata=extra)
    with pytest.raises(PluginError) as error:
        provider_class("aws")
    advice = "run, in a copy of cloudspot's source: pip install plugins/aws"
    assert str(error.value) == f'no provider "aws" is installed; {advice}'
    with pytest.raises(PluginError) as error:
        sandbox_class("aws", object)
    assert str(error.value) == f'no sandbox "aws" is installed; {advice} plugins/aws-sandbox'


@pytest.mark.full
def test_an_extra_that_brings_something_else_is_no_plugin(site):
    extra = "Provides-Extra: torch\nRequires-Dist: torch; extra == 'torch'\n"
    site.install("cloudspot", module="unused", version=cloudspot.__version__, entry_points="", metadata=extra)
    with pytest.raises(PluginError, match=r'^no provider "torch" is installed; the known ones are '):
        provider_class("torch")


@pytest.mark.full
def test_a_mistyped_provider_comes_with_the_right_name():
    with pytest.raises(PluginError, match=r'^no provider "locla" is installed; did you mean "local"\?$'):
        provider_class("locla")


@pytest.mark.full
def test_a_name_that_is_none_is_no_advice_to_install_it():
    with pytest.raises(PluginError, match=r'^no provider "a; rm -rf /" is installed; .* ones are local$'):
        provider_class("a; rm -rf /")


@pytest.mark.full
def test_a_missing_scheme_is_named():
    with pytest.raises(PluginError, match=r"^no installed plugin opens s3:// URLs, only file://;"):
        open_store("s3://bucket")


def test_a_store_that_is_no_url_is_refused():
    with pytest.raises(SpecError, match=r'^store "/data" is not a URL'):
        open_store("/data")


# --- versions that do not fit -------------------------------------------------------------------


def requires(line):
    return f"Requires-Dist: boto3\nRequires-Dist: {line}\n"


@pytest.mark.full
@pytest.mark.parametrize("line", ["cloudspot==9.9", "cloudspot (==9.9)", "CloudSpot == 9.9"])
def test_a_plugin_of_another_release_is_refused_with_both_versions_and_is_not_imported(site, line):
    site.install("cloudspot-sky", code="raise SystemExit('imported')", metadata=requires(line))
    found = cloudspot.__version__
    misfit = f"it fits cloudspot 9.9 only, and this is cloudspot {found}; install both in the same version"
    with pytest.raises(PluginError) as error:
        provider_class("sky")
    assert str(error.value) == f'provider "sky" of cloudspot-sky 1.2: {misfit}'
    with pytest.raises(PluginError) as error:
        open_store("sky://bucket")
    assert re.fullmatch(
        rf'store( plugin)? "sky" of cloudspot-sky 1\.2: {re.escape(misfit)}', str(error.value)
    )
    assert others() == [ProviderEntry("sky", "cloudspot-sky", "1.2", misfit)]


@pytest.mark.full
@pytest.mark.parametrize(
    "line",
    [
        f"cloudspot=={cloudspot.__version__}",
        "cloudspot",
        "cloudspot>=9.9",
        "cloudspot-sea==9.9",
        "mycloudspot==9.9",
    ],
)
def test_a_plugin_that_pins_this_version_or_none_is_accepted(site, line):
    site.install("cloudspot-sky", metadata=requires(line))
    assert others() == [ProviderEntry("sky", "cloudspot-sky", "1.2", None)]


# --- what is broken -----------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import no_such_sdk", "its module raised ModuleNotFoundError: No module named 'no_such_sdk'"),
        ("x = (", "SyntaxError: "),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
        ("from cloudspot.errors import AuthError; raise AuthError('no key')", "no key"),
        ("", "the hook cloudspot_provider in its module broken_sky is missing"),
        (
            "def cloudspot_provider(name): ...",
            "the hook cloudspot_provider in its module broken_sky is not marked with @hookimpl",
        ),
        (GOOD.replace("return Sky if", "return None if"), 'returned None for "sky"'),
        (GOOD.replace("return Sky if", "return 3 if"), "returned an instance of int, not the class itself"),
        (GOOD.replace("return Sky if", "return Sky(Options()) if"), "returned an instance of Sky, not the"),
        (GOOD.replace("return Sky if", "return Store if"), "Store is not a subclass of Provider"),
        (GOOD.replace("return Sky if", "return 1 / 0 if"), "ZeroDivisionError: division by zero"),
        (GOOD.replace("def node_identity(self): ...", ""), "Sky lacks node_identity"),
        (GOOD.replace('name = "sky"', 'name = "sea"'), "Sky.name is 'sea', not \"sky\" as in its entry"),
        (
            GOOD.replace("options_type = Options", "options_type = dict"),
            "Sky.options_type is the class dict, not type[Struct]",
        ),
        (GOOD.replace("options_type = Options", ""), "Sky has no options_type"),
        (
            GOOD.replace("def provisioner", "driver_options = ['profile']\n        def provisioner"),
            "Sky.driver_options is list[str], not frozenset[str]",
        ),
        (
            GOOD.replace("def cloudspot_provider(name)", "def cloudspot_provdier(name)"),
            "it has no hook cloudspot_provdier; did you mean cloudspot_provider?",
        ),
        (
            GOOD.replace("def cloudspot_provider(name)", "def cloudspot_provider(nmae)"),
            "its hooks have wrong arguments: Argument(s) {'nmae'} are declared in the hookimpl",
        ),
    ],
)
def test_a_broken_plugin_is_listed_with_its_error_and_hides_no_other(site, code, reason):
    site.install("cloudspot-broken", module="broken_sky", code=code, entry_points=only("sky") + "broken_sky")
    site.install(
        "cloudspot-sea",
        code=GOOD.replace('"sky"', '"sea"'),
        entry_points=only("sea") + "cloudspot_sea",
    )
    sea, sky = others()
    assert sea == ProviderEntry("sea", "cloudspot-sea", "1.2", None)
    assert (sky.name, sky.distribution) == ("sky", "cloudspot-broken")
    assert reason in sky.error
    assert "\n" not in sky.error
    with pytest.raises(PluginError, match=r'"sky" of cloudspot-broken 1\.2 is broken: '):
        provider_class("sky")
    assert provider_class("sea").name == "sea"
    assert provider_class("local").name == "local"


@pytest.mark.full
def test_an_entry_point_to_nothing_is_a_broken_plugin(site):
    site.install("cloudspot-sky", entry_points=only("sky") + "!!")
    assert others()[0].name == "sky"
    assert others()[0].error is not None


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("cloudspot_ocean", "its entry point names the missing module cloudspot_ocean"),
        ("cloudspot_sky.ocean", "its entry point names the missing module cloudspot_sky.ocean"),
        (
            "cloudspot_sky:Sky",
            "its entry point names cloudspot_sky:Sky; it must name the module alone: cloudspot_sky",
        ),
        ("cloudspot_sky:sky", "its module raised AttributeError: "),
    ],
)
def test_an_entry_point_that_names_no_module_is_told_apart(site, named, reason):
    site.install("cloudspot-sky", entry_points=only("sky") + named)
    with pytest.raises(PluginError) as error:
        provider_class("sky")
    assert reason in str(error.value)


def test_unreadable_entry_points_hide_no_other(site):
    site.install("cloudspot-odd", entry_points="[cloudspot.providers]\nno equals sign\n")
    site.install("cloudspot-sky")
    odd, sky = others()
    assert (odd.name, odd.error.split(":")[0]) == ("cloudspot-odd", "its entry points cannot be read")
    assert sky == ProviderEntry("sky", "cloudspot-sky", "1.2", None)


def test_a_provider_whose_constructor_fails_is_a_broken_plugin(site):
    code = GOOD.replace(
        'name = "sky"', 'name = "sky"\n        def __init__(self, options): raise KeyError("x")'
    )
    site.install("cloudspot-sky", code=code)
    with pytest.raises(
        PluginError,
        match=r"""^provider "sky" of cloudspot-sky 1.2 is broken: making it raised KeyError: 'x'$""",
    ):
        open_provider("sky", None)


def test_a_store_that_is_none_is_a_broken_plugin(site):
    site.install("cloudspot-sky", code=GOOD.replace("return Store(url) if", "return dict() if"))
    with pytest.raises(
        PluginError, match=r"cloudspot_object_store returned dict, not an instance of ObjectStore$"
    ):
        open_store("sky://user:hunter2@bucket")


def test_an_error_that_a_plugin_means_passes_as_it_is(site):
    refusal = "from cloudspot.errors import SpecError; raise SpecError('no bucket')"
    site.install("cloudspot-sky", code=GOOD.replace("return Store(url) if", f"{refusal}; return None if"))
    with pytest.raises(SpecError, match=r"^no bucket$"):
        open_store("sky://")


@pytest.mark.full
def test_what_was_opened_is_closed_at_the_end_and_the_provider_knows_what_it_came_from(site):
    close = "def close(self): import pathlib; pathlib.Path(self.url[6:]).write_text('closed')"
    code = GOOD.replace("def delete(self, key): ...", f"def delete(self, key): ...\n        {close}")
    site.install("cloudspot-sky", code=code)
    assert provider_class("sky").made_by == "cloudspot-sky 1.2"
    path = site.path / "log"
    store = open_store(f"sky://{path}")
    close_stores()
    assert path.read_text() == "closed"
    assert store.url == f"sky://{path}", "it is still there"


# --- which interfaces it was written for --------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("line", ["", "    cloudspot_api_version = 2"])
def test_a_plugin_of_this_version_of_the_interfaces_or_of_none_is_accepted(site, line):
    site.install("cloudspot-sky", code=GOOD + line)
    assert provider_class("sky").name == "sky"
    assert open_store("sky://bucket").url == "sky://bucket"


@pytest.mark.full
@pytest.mark.parametrize(("version", "advice"), [(1, "upgrade cloudspot-sky"), (3, "upgrade cloudspot")])
def test_a_plugin_of_another_version_is_refused_whatever_hooks_it_has(site, version, advice):
    code = GOOD.replace("def cloudspot_provider(name)", "def cloudspot_unheard_of(name)")
    site.install("cloudspot-sky", code=code + f"    cloudspot_api_version = {version}")
    refusal = (
        f'plugin "sky" of cloudspot-sky 1.2 is written for version {version} of cloudspot\'s interfaces, '
        f"but cloudspot {cloudspot.__version__} has version 2; {advice}"
    )
    for use in (lambda: provider_class("sky"), lambda: open_store("sky://bucket")):
        with pytest.raises(PluginError) as error:
            use()
        assert str(error.value) == refusal
    assert others()[0].error == refusal


@pytest.mark.parametrize("version", ["0", "'1'", "None"])
def test_a_version_that_is_none_is_a_broken_plugin(site, version):
    site.install("cloudspot-sky", code=GOOD + f"    cloudspot_api_version = {version}")
    with pytest.raises(PluginError, match=r"is broken: cloudspot_api_version .* is not a version$"):
        provider_class("sky")


# --- who may take which name --------------------------------------------------------------------


def test_a_plugin_does_not_replace_a_built_in_one(site, tmp_path):
    site.install(
        "cloudspot-thief",
        code=GOOD.replace('"sky"', '"local"').replace("sky://", "file://"),
        entry_points="[cloudspot.providers]\nlocal = cloudspot_thief\n[cloudspot.stores]\nfile = cloudspot_thief\n",
    )
    assert provider_class("local").__module__.startswith("cloudspot.")
    assert type(open_store(f"file://{tmp_path}")).__module__.startswith("cloudspot.")
    assert "cloudspot_thief" not in sys.modules
    assert others() == [
        ProviderEntry(
            "local",
            "cloudspot-thief",
            "1.2",
            '"local" is built in and cannot be replaced; uninstall cloudspot-thief',
        )
    ]


@pytest.mark.full
def test_of_two_plugins_with_one_name_neither_wins(site):
    site.install("cloudspot-sky")
    site.install("sky-for-cloudspot", entry_points=only("sky") + "sky_for_cloudspot")
    reason = 'cloudspot-sky and sky-for-cloudspot both provide "sky"; uninstall one of them'
    assert [(entry.distribution, entry.error) for entry in others()] == [
        ("cloudspot-sky", reason),
        ("sky-for-cloudspot", reason),
    ]
    with pytest.raises(PluginError, match="both provide"):
        provider_class("sky")


def test_the_same_distribution_twice_on_the_path_is_one(site, tmp_path, monkeypatch):
    site.install("cloudspot-sky", version="2.0")
    second = tmp_path / "second"
    second.mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(second)])
    Site(second).install("cloudspot-sky", version="1.0")
    assert others() == [ProviderEntry("sky", "cloudspot-sky", "2.0", None)]


SANDBOX = """
    from cloudspot.errors import PluginError
    from cloudspot.hookspecs import hookimpl
    from cloudspot.emulation.cloud import EmulatedCloud

    class Sky(EmulatedCloud):
        name = "sky"
        def start(self, host, *, address, directory): ...
        def environment(self): ...
        def machine_environment(self): ...
        def stop(self): ...

    @hookimpl
    def cloudspot_sandbox(name):
        {answer}
"""


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("return Sky", None),
        ("return Sky()", "returned an instance of Sky, not the class itself"),
        ("return None", "returned None for"),
        ("return EmulatedCloud", "EmulatedCloud lacks environment, machine_environment, start, stop"),
        ("return type('Ground', (Sky,), {'name': 'ground'})", r'Ground.name is \'ground\', not "sky"'),
        ("raise PluginError('run: pip install x')", "^run: pip install x$"),
        ("import no_such_module", "is broken: its hook cloudspot_sandbox raised ModuleNotFoundError"),
    ],
)
def test_a_sandbox_is_judged_like_a_provider(site, answer, message):
    from cloudspot.emulation.cloud import EmulatedCloud

    points = "[cloudspot.sandboxes]\nsky = cloudspot_sky\n"
    code = SANDBOX.replace("{answer}", answer)
    site.install("cloudspot-sky", code=code, entry_points=points)
    if message is None:
        assert sandbox_class("sky", EmulatedCloud).__name__ == "Sky"
    else:
        with pytest.raises(PluginError, match=message):
            sandbox_class("sky", EmulatedCloud)
