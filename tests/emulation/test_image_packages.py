"""Which packages of this host an image lacks, told by the lists that installers have left."""

from __future__ import annotations

import io
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from cloudspot.emulation import image_packages, package_index
from cloudspot.emulation.image_packages import missing_files, own_distributions
from cloudspot.emulation.package_index import PackageIndex


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """An environment of its own, in which ``install`` puts distributions; its place for them."""
    place = tmp_path / "lib" / "python3" / "site-packages"
    place.mkdir(parents=True)
    monkeypatch.syspath_prepend(place)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    for module in (image_packages, package_index):
        monkeypatch.setattr(module, "places", lambda: (place,))
    missing_files.cache_clear()
    yield place
    missing_files.cache_clear()


def install(
    place: Path, name: str, *files: str, requires: str = "", scripts: str = "", url: str = ""
) -> None:
    info = f"{name.replace('-', '_')}-1.0.dist-info"
    texts = {file: f"# {file}\n" for file in files}
    texts[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{requires}"
    texts[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nTag: py2-none-any\nTag: py3-none-any\n"
    texts[f"{info}/INSTALLER"] = "pip\n"
    if scripts:
        texts[f"{info}/entry_points.txt"] = f"[console_scripts]\n{scripts}\n"
    if url:
        texts[f"{info}/direct_url.json"] = url
    for file, text in texts.items():
        (place / file).parent.mkdir(parents=True, exist_ok=True)
        (place / file).write_text(text)
    (place / info / "RECORD").write_text(
        "".join(f"{file},sha256=x,1\n" for file in [*texts, f"{info}/RECORD"])
    )


def missing(place: Path, *kept: str) -> set[str]:
    """Return what is missing, by its path below the environment."""
    root = str(place.parents[2])
    return {file.removeprefix(f"{root}/") for file in missing_files(kept)}


def test_what_is_kept_is_there_with_all_that_it_needs(environment):
    install(environment, "big-frame", "frame/a.py", "frame/b.py", requires="Requires-Dist: small>=1\n")
    install(environment, "small", "small.py")
    install(environment, "other", "other/deep/a.py", "other/b.py", "other.so")
    site = "lib/python3/site-packages"
    others = {f"{site}/other", f"{site}/other.so", f"{site}/other-1.0.dist-info"}
    assert missing(environment, "Big_Frame") == others
    assert missing(environment, "big-frame", "other") == set()
    assert missing(environment, "none-such", "other", "small") == {
        f"{site}/frame",
        f"{site}/big_frame-1.0.dist-info",
    }


def test_in_a_directory_that_distributions_share_only_the_others_files_are_missing(environment):
    install(environment, "cloud-a", "cloud/a/x.py", "cloud/shared.py", "../../../bin/a")
    install(environment, "cloud-b", "cloud/b/x.py", "cloud/b/y.py", "cloud/shared.py", "../../../bin/b")
    site = "lib/python3/site-packages"
    assert missing(environment, "cloud-a") == {f"{site}/cloud/b", f"{site}/cloud_b-1.0.dist-info", "bin/b"}


def test_of_a_directory_that_this_python_shares_with_others_files_alone_are_missing(environment):
    """Its own program lies there, which is in no list."""
    install(environment, "tool", "tool.py", "../../../bin/tool", "../../../share/tool/data")
    assert {"bin/tool", "share/tool/data"} <= missing(environment)
    assert "bin" not in missing(environment)


def test_packages_without_a_list_of_their_files_count_as_the_systems(environment):
    install(environment, "of-debian", "of_debian.py")
    (environment / "of_debian-1.0.dist-info" / "RECORD").unlink()
    assert missing(environment) == set()


def test_images_have_cloudspot_and_its_plugins_and_none_of_the_emulations():
    assert {"cloudspot", "cloudspot-aws", "cloudspot-kubernetes"} <= set(own_distributions())
    assert not [name for name in own_distributions() if name.endswith("-sandbox")]


def test_a_list_names_no_file_outside_of_the_environment(environment, tmp_path, index):
    """A machine could read it, from a wheel."""
    secret = tmp_path.parent / f"{tmp_path.name}-secret"
    secret.write_text("the host's")
    outside = f"../../../../{secret.name}"
    install(environment, "odd", "odd.py", outside, str(secret), "../../../bin/../../x")
    found = missing(environment)
    assert "lib/python3/site-packages/odd.py" in found
    assert not [file for file in found if "secret" in file or file.endswith("/x")]
    with urlopen(f"{index().removesuffix('simple/')}wheels/odd-1.0-py2.py3-none-any.whl") as answer:
        wheel = answer.read()
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        assert not [name for name in archive.namelist() if "secret" in name]


@pytest.fixture
def index(tmp_path):
    """Return what makes an index, once all is installed."""
    made = []

    def make() -> str:
        made.append(PackageIndex("127.0.0.1", tmp_path / "wheels"))
        return made[0].environment()["PIP_INDEX_URL"]

    yield make
    for one in made:
        one.close()


def test_the_index_has_a_wheel_of_each_installed_distribution(environment, index, tmp_path):
    files = (
        "my_tool/a.py",
        "my_tool/__pycache__/a.pyc",
        "../../../bin/my-tool",
        "../../../share/my-tool.txt",
    )
    install(environment, "My.Tool", *files, scripts="my-tool = my_tool.a:main")
    url = index()
    with urlopen(f"{url}my-tool/") as page:
        text = page.read().decode()
    name = "My_Tool-1.0-py2.py3-none-any.whl"
    assert f'href="/wheels/{name}"' in text
    wheel = tmp_path / "got.whl"
    with urlopen(f"{url.removesuffix('simple/')}wheels/{name}") as answer:
        wheel.write_bytes(answer.read())
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        # Installers write the scripts of entry points themselves, and their own notes.
        assert set(archive.namelist()) == {
            "my_tool/a.py",
            "My_Tool-1.0.data/data/share/my-tool.txt",
            *(
                f"My_Tool-1.0.dist-info/{file}"
                for file in ("METADATA", "RECORD", "WHEEL", "entry_points.txt")
            ),
        }
        assert archive.read("my_tool/a.py") == b"# my_tool/a.py\n"


@pytest.mark.parametrize(
    "path", ["simple/none-such/", "simple/editable/", "wheels/none.whl", "wheels/../x", ""]
)
def test_the_index_has_nothing_else(environment, index, path):
    install(environment, "editable", url='{"url": "file:///src", "dir_info": {"editable": true}}')
    url = index().removesuffix("simple/") + path
    with pytest.raises(HTTPError, match="404"):
        urlopen(url)


def test_a_name_that_is_not_the_wheels_own_is_none(environment, index):
    install(environment, "tool", "tool.py")
    url = index().removesuffix("simple/")
    with pytest.raises(HTTPError, match="404"):
        urlopen(f"{url}wheels/tool-2.0-py2.py3-none-any.whl")


@pytest.mark.full
@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="not in an environment of its own")
def test_what_this_host_has_installed_is_found():
    """By the real lists: pytest runs here, and no image of a cloud has it."""
    missing_files.cache_clear()
    found = missing_files(("pip",))
    place = Path(pytest.__file__).parents[1].resolve()
    assert {str(place / "pytest"), str(place / f"pytest-{metadata.version('pytest')}.dist-info")} <= set(
        found
    )
    assert not [file for file in found if Path(file).name == "pip"]
