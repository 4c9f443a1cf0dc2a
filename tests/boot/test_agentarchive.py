"""The wheels that are made of what is installed."""

from __future__ import annotations

import csv
import hashlib
import io
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from cloudspot.boot import agentarchive
from cloudspot.boot.agentarchive import code_digest, make_agent_archive
from cloudspot.errors import CloudspotError

COMPILED = "Tag: cp311-cp311-manylinux_2_17_x86_64\nTag: cp311-cp311-manylinux2014_x86_64\n"
COMPILED_FILE = "cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"


def members(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


def projects(data: bytes, folder: str) -> set[str]:
    """Return of what there are wheels in this folder of the archive."""
    return {name.split("/")[1].partition("-")[0] for name in members(data) if name.startswith(f"{folder}/")}


def install(site, name: str, files: dict[str, str], *, requires: str = "", tag: str = "") -> Path:
    """Put a distribution on the path as pip does, and return the directory of its metadata."""
    info = f"{name.replace('-', '_')}-1.0.dist-info"
    listed = dict(files)
    listed[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{requires}"
    if tag:
        listed[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\n{tag}"
    for path, text in listed.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    lines = [*(f"{path},," for path in listed), "../../../bin/tool,,", f"{info}/RECORD,,"]
    (site / info / "RECORD").write_text("\n".join(lines) + "\n")
    return site / info


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.full
def test_equal_code_gives_equal_bytes():
    first, second = make_agent_archive([]), make_agent_archive([])
    assert first == second
    assert first.data == second.data
    assert hashlib.sha256(first.data).hexdigest() == first.sha256
    assert first.requirements == ("cloudspot",)


@pytest.mark.full
def test_it_holds_cloudspot_the_plugin_and_all_that_they_need():
    data = make_agent_archive(["cloudspot-aws", "cloudspot"]).data
    assert {"cloudspot", "cloudspot_aws", "boto3", "botocore", "click", "pluggy"} <= projects(data, "wheels")
    assert projects(data, "compiled") == {"fastcrc", "msgspec", "xxhash", "zstandard"}
    pins = members(data)["index.txt"].decode().splitlines()
    assert pins == [
        f"{name}=={metadata.version(name)}" for name in ("fastcrc", "msgspec", "xxhash", "zstandard")
    ]
    assert projects(data, "installer") <= {"pip"}
    assert not {"pip", "pytest"} & projects(data, "wheels")


@pytest.mark.full
def test_a_wheel_lists_what_it_holds_with_its_hashes(site):
    install(site, "sky-tools", {"sky_tools/__init__.py": "x = 1\n", "sky_tools/data.sh": "true\n"})
    wheels = members(make_agent_archive(["sky-tools"]).data)
    wheel = zipfile.ZipFile(io.BytesIO(wheels["wheels/sky_tools-1.0-py3-none-any.whl"]))
    assert wheel.testzip() is None
    record = "sky_tools-1.0.dist-info/RECORD"
    rows = list(csv.reader(io.StringIO(wheel.read(record).decode())))
    assert sorted(row[0] for row in rows) == sorted(wheel.namelist())
    assert "sky_tools/data.sh" in wheel.namelist()
    assert not [name for name in wheel.namelist() if "bin" in name]
    sizes = {row[0]: row[2] for row in rows}
    assert sizes["sky_tools/__init__.py"] == "6"
    assert sizes[record] == ""


def test_an_editable_install_gives_its_sources_and_the_same_digest(site):
    files = {"sky_tools/__init__.py": "x = 1\n", "sky_tools/part/more.py": "y = 2\n"}
    install(site, "sky-tools", files)
    installed = code_digest(["sky-tools"])
    (site / "sky_tools-1.0.dist-info" / "RECORD").write_text("sky_tools-1.0.dist-info/METADATA,,\n")
    (site / "sky_tools" / "__pycache__").mkdir()
    (site / "sky_tools" / "__pycache__" / "more.pyc").write_text("junk")
    assert code_digest(["sky-tools"]) == installed
    (site / "sky_tools" / "part" / "more.py").write_text("y = 3\n")
    assert code_digest(["sky-tools"]) != installed


@pytest.mark.full
def test_dependencies_come_along_with_the_tags_of_their_platform(site):
    install(site, "sky-fast", {"sky_fast/__init__.py": ""}, tag=COMPILED)
    install(site, "sky-slow", {"sky_slow/__init__.py": ""})
    requires = 'Requires-Dist: Sky_Fast (>=1)\nRequires-Dist: sky-slow\nRequires-Dist: absent; python_version < "3"\nRequires-Dist: pytest; extra == "t"\n'
    install(site, "sky-tools", {"sky_tools/__init__.py": ""}, requires=requires)
    data = make_agent_archive(["sky-tools"]).data
    assert f"compiled/sky_fast-1.0-{COMPILED_FILE}" in members(data)
    assert {"sky_tools", "sky_slow", "cloudspot", "click"} <= projects(data, "wheels")
    assert "pytest" not in projects(data, "wheels")
    pins = members(data)["index.txt"].decode().splitlines()
    assert "sky-fast==1.0" in pins
    assert {pin.partition("==")[0] for pin in pins} == {"msgspec", "sky-fast", "xxhash", "zstandard"}


@pytest.mark.full
@pytest.mark.parametrize(
    ("installer", "url", "folder"),
    [
        ("pip", None, "compiled"),
        ("conda", '{"url": "file:///home/conda/feedstock_root/build"}', "compiled"),
        ("pip", '{"url": "file:///home/me/sky-fast"}', "wheels"),
        ("uv", '{"url": "https://git.example/sky-fast"}', "wheels"),
    ],
)
def test_what_came_from_no_index_never_comes_from_one(site, installer, url, folder):
    """Another may have published something else under its name."""
    info = install(site, "sky-fast", {"sky_fast/__init__.py": ""}, tag=COMPILED)
    (info / "INSTALLER").write_text(f"{installer}\n")
    if url is not None:
        (info / "direct_url.json").write_text(url)
    install(site, "sky-tools", {"sky_tools/__init__.py": ""}, requires="Requires-Dist: sky-fast\n")
    data = make_agent_archive(["sky-tools"]).data
    assert f"{folder}/sky_fast-1.0-{COMPILED_FILE}" in members(data)
    assert ("sky-fast==1.0\n" in members(data)["index.txt"].decode()) == (folder == "compiled")


@pytest.mark.full
def test_a_plugin_with_compiled_code_never_comes_from_an_index(site):
    install(site, "sky-tools", {"sky_tools/__init__.py": ""}, tag=COMPILED)
    data = make_agent_archive(["Sky.Tools"]).data
    assert f"wheels/sky_tools-1.0-{COMPILED_FILE}" in members(data)
    assert "sky" not in members(data)["index.txt"].decode()


@pytest.mark.full
def test_a_dependency_whose_files_nobody_has_listed_comes_from_the_index_at_its_version(site):
    """Debian's packages have no list, and the module's name need not be the project's."""
    info = install(site, "sky-slow", {"slow_of_the_sky.py": ""})
    (info / "RECORD").unlink()
    install(site, "sky-tools", {"sky_tools/__init__.py": ""}, requires="Requires-Dist: sky-slow\n")
    data = make_agent_archive(["sky-tools"]).data
    assert "sky_slow" not in projects(data, "wheels") | projects(data, "compiled")
    assert "sky-slow==1.0\n" in members(data)["index.txt"].decode()


@pytest.mark.full
def test_extras_that_are_asked_for_come_along_and_no_others(site):
    """google-cloud-compute needs google-api-core[grpc], which alone needs grpcio-status."""
    extras = (
        "Requires-Dist: sky-wire[Fast_Er,safe]>=1\n",
        'Requires-Dist: sky-line ; extra == "fast-er"\nRequires-Dist: sky-base[deep]\n',
        "Requires-Dist: sky-deep ; extra == 'deep'\nRequires-Dist: sky-salt ; (os_name) and extra == \"salt\"\n",
    )
    for name, requires in zip(("sky-tools", "sky-wire", "sky-base"), extras, strict=True):
        install(site, name, {f"{name.replace('-', '_')}/__init__.py": ""}, requires=requires)
    for name in ("sky-line", "sky-salt", "sky-deep"):
        install(site, name, {f"{name.replace('-', '_')}/__init__.py": ""})
    found = projects(make_agent_archive(["sky-tools"]).data, "wheels")
    assert {name for name in found if name.startswith("sky")} == {
        "sky_tools",
        "sky_wire",
        "sky_base",
        "sky_line",
        "sky_deep",
    }


@pytest.mark.full
def test_what_only_drivers_import_stays_behind_and_no_machine_is_told_to_install_it(site):
    """Somebody else's requirement of it holds."""
    requires = "Requires-Dist: NumPy (>=1.26)\nRequires-Dist: sky-base\nRequires-Dist: numpy ; extra == 'x'\n"
    install(site, "cloudspot", {"cloudspot/__init__.py": ""}, requires=requires)
    install(site, "sky-base", {"sky_base/__init__.py": ""})
    install(site, "numpy", {"numpy/__init__.py": ""})
    found = members(make_agent_archive([]).data)
    assert {name for name in found if not name.startswith("installer/")} == {
        "index.txt",
        "wheels/cloudspot-1.0-py3-none-any.whl",
        "wheels/sky_base-1.0-py3-none-any.whl",
    }
    wheel = zipfile.ZipFile(io.BytesIO(found["wheels/cloudspot-1.0-py3-none-any.whl"]))
    text = wheel.read("cloudspot-1.0.dist-info/METADATA").decode()
    assert text == "Metadata-Version: 2.1\nName: cloudspot\nVersion: 1.0\nRequires-Dist: sky-base\n"
    install(site, "sky-tools", {"sky_tools/__init__.py": ""}, requires="Requires-Dist: numpy\n")
    assert "numpy" in projects(make_agent_archive(["sky-tools"]).data, "wheels")


def test_what_is_not_installed_is_named():
    with pytest.raises(CloudspotError, match="no-such-thing is not installed as a distribution"):
        make_agent_archive(["no-such-thing"])


def test_a_node_says_what_it_has(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["agentarchive", "cloudspot"])
    assert len(agentarchive.code_digest(["cloudspot"])) == 64
