"""Where a machine keeps inputs that has disks of its own: real file systems on loop devices, in a mount namespace."""

import os
import shutil
import subprocess

import pytest

from cloudspot.boot.script import BootPlan, render_boot_script
from cloudspot.model import BootProfile

NAMES = ("losetup", "mkfs.ext4", "mountpoint", "lsblk", "blkid", "unshare", "sfdisk")


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


@pytest.fixture
def boot(tmp_path):
    """Run the part of the script that looks for disks; return what it prints."""

    def run(after="", *, environment=None, **fields):
        chosen = profile(own_disks=(f"{tmp_path}/by-id/own-*",), **fields)
        script = render_boot_script(plan(chosen))
        part = script[
            script.index("own_disks=") : script.index("# Starts the agent")
            if "# Starts" in script
            else script.index("run_agent()")
        ]
        (tmp_path / "node").mkdir(exist_ok=True)
        words = [
            "unshare",
            "--mount",
            "bash",
            "-uc",
            f'{part}\necho "cache ${{CLOUDSPOT_INPUT_CACHE-none}}"\n{after}',
        ]
        (tmp_path / "bin").mkdir(exist_ok=True)
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
    assert f"cloudspot: inputs are kept on {device}, a disk of the machine's own; there are 1\n" in said
    assert f"cache {tmp_path}/node/own-disk\n" in said
    assert said.splitlines()[-3:] == [device, "lost+found", "x"]


def test_a_disk_with_anything_on_it_is_left_alone(boot, disk, tmp_path):
    """A second boot, or an image of one's own that uses the disk itself."""
    with_files, parted, other = disk("own-1"), disk("own-2"), disk("other")
    subprocess.run(["mkfs.ext4", "-q", with_files], check=True)
    subprocess.run(["sfdisk", "--quiet", "--no-reread", parted], input=b"label: gpt\n,\n", check=True)
    before = [hash_of(one) for one in (with_files, parted, other)]
    assert boot() == "cache none\n"
    assert [hash_of(one) for one in (with_files, parted, other)] == before


def test_several_disks_are_one_or_the_first_of_them_if_that_fails(boot, disk, tmp_path):
    devices = [disk("own-1"), disk("own-2")]
    (tmp_path / "bin").mkdir()
    mdadm = tmp_path / "bin" / "mdadm"
    mdadm.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\nexit 1\n')
    mdadm.chmod(0o755)
    assert f"kept on {devices[0]}, a disk of the machine's own; there are 2\n" in boot()
    asked = (tmp_path / "asked").read_text().split()
    assert asked[-3:] == ["--raid-devices=2", *devices]
    assert "--level=0" in asked


def test_what_the_image_mounts_itself_is_used_as_it_is(boot, disk, tmp_path):
    device = disk("own-1")
    before = hash_of(device)
    assert boot(own_directories=("/nowhere", "/proc")) == "cache /proc\n"
    assert hash_of(device) == before


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
