"""The code of a function that drives jobs."""

import io
import os
import subprocess
import sys
import zipfile

import pytest

from cloudspot.boot import functionarchive
from cloudspot.boot.functionarchive import make_function_archive
from cloudspot.local.filestore import FileStore


@pytest.fixture(scope="module")
def archive():
    return make_function_archive(["cloudspot-aws"])


@pytest.mark.full
def test_it_holds_all_that_a_driver_imports(archive):
    names = zipfile.ZipFile(io.BytesIO(archive.data)).namelist()
    packages = {name.partition("/")[0] for name in names}
    assert {"cloudspot", "cloudspot_aws", "boto3", "botocore", "click", "numpy", "msgspec"} <= packages
    assert not {"pip", "pytest", "torch"} & packages
    # Plugins are found by their entry points.
    assert any(name.startswith("cloudspot_aws-") and name.endswith("entry_points.txt") for name in names)


@pytest.mark.full
def test_it_tells_how_large_it_is_unpacked(archive):
    names = zipfile.ZipFile(io.BytesIO(archive.data)).infolist()
    assert archive.unpacked_bytes == sum(one.file_size for one in names)


@pytest.mark.full
def test_equal_code_gives_equal_bytes(archive):
    assert make_function_archive(["cloudspot-aws"]) == archive


def test_it_tells_the_c_library_that_it_needs():
    names = {
        "numpy-2.4-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl": (2, 27),
        "msgspec-0.2-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.manylinux_2_28_x86_64.whl": (
            2,
            17,
        ),
        "click-8.1-py3-none-any.whl": (0, 0),
    }
    assert {name: functionarchive._glibc_of(name) for name in names} == names


@pytest.mark.full
def test_it_makes_a_pass_with_nothing_else_installed(archive, tmp_path):
    zipfile.ZipFile(io.BytesIO(archive.data)).extractall(tmp_path / "task")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); "
        "from cloudspot.cli.function import handle; print(handle({}, None))"
    )
    store = FileStore(f"file://{tmp_path}/store")
    store.establish()
    environ = {
        "CLOUDSPOT_STORE": store.url,
        "CLOUDSPOT_DRIVER_NAME": "function x",
        "CLOUDSPOT_DRIVER_EVERY": "60",
        "HOME": str(tmp_path),
        "PATH": os.environ["PATH"],
    }
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(tmp_path / "task")],
        env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "{'status': 0}\n"), done.stderr
    assert [path.name for path in (tmp_path / "store" / "drivers").iterdir()] == ["function-x"]


@pytest.mark.full
def test_what_has_no_files_here_is_named(monkeypatch):
    made = functionarchive.make_agent_archive

    def lacking(plugins, *, drives):
        assert drives
        found = made(plugins, drives=False)
        return type(found)(found.data.replace(b"msgspec==", b"absent0=="), "", "", ())

    monkeypatch.setattr(functionarchive, "make_agent_archive", lacking)
    with pytest.raises(functionarchive.CloudspotError, match=r"the files of absent0==.* cannot be found"):
        make_function_archive([])
