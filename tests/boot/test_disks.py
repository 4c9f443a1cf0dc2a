"""Where a machine keeps inputs that has disks of its own: real file systems on loop devices, in a mount namespace."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cloudspot.boot.script import BootPlan, render_boot_script
from cloudspot.jobfile.spec import spec_from_json
from cloudspot.model import BootProfile
from cloudspot.registry import open_provider

NAMES = ("losetup", "mkfs.ext4", "mountpoint", "lsblk", "wipefs", "unshare", "sfdisk")


def why_not():
    missing = [name for name in NAMES if shutil.which(name) is None]
    if os.geteuid() != 0 or missing:
        return f"this takes root and {', '.join(missing or NAMES)}"
    done = subprocess.run(["losetup", "--find"], capture_output=True, text=True)
    return None if done.returncode == 0 else f"no loop devices: {done.stderr.strip()}"


def plan(profile, *, stages_inputs=True):
    return BootPlan(
        job_id="digits", submission_sha256="5" * 64, launch=1, store_url="file:///store", provider="local",
        profile=profile, max_seconds=60.0, version="1", stages_inputs=stages_inputs,
    )  # fmt: skip


def profile(**fields):
    return BootProfile(has_cloudspot=True, **fields)


@pytest.fixture
def disk(tmp_path):
    """``disk(name)``: an empty disk of 32 MiB below ``by-id``; returns its device."""
    if reason := why_not():
        pytest.skip(f"NOT TESTED, {reason}")
    (tmp_path / "by-id").mkdir()
    devices = []

    def make(name):
        file = tmp_path / f"{name}.img"
        with file.open("wb") as image:
            image.truncate(32 << 20)
        done = subprocess.run(
            ["losetup", "--find", "--show", str(file)], capture_output=True, text=True, check=True
        )
        devices.append(done.stdout.strip())
        (tmp_path / "by-id" / name).symlink_to(devices[-1])
        return devices[-1]

    yield make
    for device in devices:
        subprocess.run(["losetup", "--detach", device], check=True)


DF = """#!/bin/sh
case "$*" in
    *--output=avail*/node) echo avail; echo "${{BOOT_DISK:-1}}";;
    *) exec {df} "$@";;
esac
"""


@pytest.fixture
def boot(tmp_path):
    """Run the part of the script that looks for disks; return what it prints.

    The boot disk has one byte of room, unless the variable ``BOOT_DISK`` says something else.
    """
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "df").write_text(DF.format(df=shutil.which("df")))
    (tmp_path / "bin" / "df").chmod(0o755)

    def run(after="", *, environment=None, **fields):
        chosen = profile(own_disks=(f"{tmp_path}/by-id/own-*",), **fields)
        script = render_boot_script(plan(chosen))
        part = script[script.index("own_disks=") : script.index("run_agent()")]
        (tmp_path / "node").mkdir(exist_ok=True)
        words = [
            "unshare",
            "--mount",
            "bash",
            "-uc",
            f'{part}\necho "cache ${{CLOUDSPOT_INPUT_CACHE-none}}"\n{after}',
        ]
        path = f"{tmp_path}/bin:{os.environ['PATH']}"
        own = {"PATH": path, "CLOUDSPOT_NODE_DIR": str(tmp_path / "node"), **(environment or {})}
        return subprocess.run(words, env=own, capture_output=True, text=True, check=True).stdout

    return run


def test_inputs_are_kept_on_an_empty_disk_and_found_there_by_a_second_run(boot, disk, tmp_path):
    device = disk("own-1")
    (tmp_path / "by-id" / "own-1-by-another-name").symlink_to(device)
    said = boot(
        'touch "$CLOUDSPOT_INPUT_CACHE/x"; df --output=source "$CLOUDSPOT_INPUT_CACHE"; unset CLOUDSPOT_INPUT_CACHE; use_own_disks; ls "$CLOUDSPOT_INPUT_CACHE"'
    )
    assert f"cloudspot: inputs are kept in {tmp_path}/node/own-disk, on a disk of the machine's own\n" in said
    assert f"cache {tmp_path}/node/own-disk\n" in said
    assert [line for line in said.splitlines() if " " not in line] == [
        "Filesystem",
        device,
        "lost+found",
        "x",
    ]


@pytest.mark.full
def test_a_disk_with_anything_on_it_is_left_alone(boot, disk, tmp_path):
    """A second boot, or an image of one's own that uses the disk itself."""
    with_files, parted, other = disk("own-1"), disk("own-2"), disk("other")
    subprocess.run(["mkfs.ext4", "-q", with_files], check=True)
    subprocess.run(["sfdisk", "--quiet", "--no-reread", parted], input=b"label: gpt\n,\n", check=True)
    doubtful = disk("own-3")  # blkid finds two kinds of file systems, and says nothing
    subprocess.run(["mkfs.ext4", "-q", doubtful], check=True)
    with Path(doubtful).open("r+b") as file:
        file.write((0x28CD3D45).to_bytes(4, "little") + bytes(12) + b"Compressed ROMFS")
    before = [hash_of(one) for one in (with_files, parted, doubtful, other)]
    assert boot() == "cache none\n"
    assert [hash_of(one) for one in (with_files, parted, doubtful, other)] == before


def test_a_disk_that_is_smaller_than_the_boot_disk_is_not_used(boot, disk):
    """The job has asked for room by ``resources.disk``, which is the boot disk's."""
    disk("own-1")
    assert boot(environment={"BOOT_DISK": str(64 << 20)}) == "cache none\n"


@pytest.mark.full
def test_a_disk_that_cannot_be_told_to_be_empty_is_left_alone(boot, disk, tmp_path):
    device = disk("own-1")
    before = hash_of(device)
    wipefs = tmp_path / "bin" / "wipefs"
    wipefs.write_text("#!/bin/sh\nexit 1\n")
    wipefs.chmod(0o755)
    assert boot() == "cache none\n"
    assert hash_of(device) == before


def test_several_disks_are_one_or_the_first_of_them_if_that_fails(boot, disk, tmp_path):
    devices = [disk("own-1"), disk("own-2")]
    mdadm = tmp_path / "bin" / "mdadm"
    mdadm.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\nexit 1\n')
    mdadm.chmod(0o755)
    said = boot('df --output=source "$CLOUDSPOT_INPUT_CACHE"')
    assert said.splitlines()[-1] == devices[0]
    asked = (tmp_path / "asked").read_text().split()
    assert asked[-3:] == ["--raid-devices=2", *devices]
    assert "--level=0" in asked


@pytest.mark.full
def test_what_the_image_mounts_itself_is_used_as_it_is(boot, disk, tmp_path):
    device = disk("own-1")
    before = hash_of(device)
    said = boot(own_directories=("/nowhere", "/dev/shm"), environment={"BOOT_DISK": "0"})
    assert said.splitlines()[-1] == "cache /dev/shm"
    assert hash_of(device) == before


@pytest.mark.full
def test_a_directory_of_the_users_choice_comes_first(boot, disk):
    device = disk("own-1")
    before = hash_of(device)
    assert boot(environment={"CLOUDSPOT_INPUT_CACHE": "/mnt/mine"}) == "cache /mnt/mine\n"
    assert hash_of(device) == before


def test_a_job_without_inputs_touches_no_disk():
    script = render_boot_script(plan(profile(own_disks=("/dev/x*",)), stages_inputs=False))
    assert "own_disks" not in script
    assert "own_disks" not in render_boot_script(plan(profile()))


def hash_of(device):
    return subprocess.run(["sha256sum", device], capture_output=True, check=True).stdout


@pytest.mark.parametrize("name", ["aws", "gcp"])
def test_a_cloud_whose_machines_may_have_such_disks_names_them(name):
    tables = {"aws": {"region": "us-east-1"}, "gcp": {"project": "p-12345"}}
    spec = spec_from_json({"name": "x", "run": {"entrypoint": "t.py"}, "providers": {name: tables[name]}})
    profile = open_provider(name, spec).boot_profile()
    assert profile.own_disks
    assert all(one.startswith("/dev/disk/by-id/") and one.endswith("*") for one in profile.own_disks)
