"""The boot script under the real cloud-init, with its Ec2 data source: what runs user data on AWS's images."""

from __future__ import annotations

import gzip
import os
import shutil
from typing import ClassVar

import boto3
import pytest

from cloudspot.boot.script import BootPlan, render_boot_script
from cloudspot.emulation.local_machine_host import emulated
from cloudspot.model import BootProfile
from cloudspot_aws_sandbox.cloud import EmulatedAws
from cloudspot_aws_sandbox.images import BARE_IMAGE_ID

pytestmark = pytest.mark.full


# The image's: what cloud-init would else change on a machine is no matter of ours.
CONFIG = """\
datasource_list: [Ec2]
datasource: {Ec2: {timeout: 10, max_wait: 30}}
network: {config: disabled}
def_log_file: /run/cloud-init.log
syslog_fix_perms: root:root
cloud_init_modules: []
cloud_config_modules: []
cloud_final_modules: [scripts-per-boot, scripts-user]
system_info: {distro: debian, paths: {cloud_dir: /var/lib/cloud, run_dir: /run/cloud-init}}
"""

BOOT = f"""\
#!/bin/bash
# Of /etc the machine has a copy: nothing of the host's may be written to.
mkdir /run/etc && cp -a /etc/. /run/etc && rm -rf /run/etc/cloud && mkdir -p /run/etc/cloud/templates &&
mount --bind /run/etc /etc && cat >/etc/cloud/cloud.cfg <<'END' || exit
{CONFIG}END
# By its hypervisor cloud-init knows that it is on EC2, and then asks for a token.
mkdir /run/sys && mount --rbind /sys /run/sys && mount -t tmpfs none /sys &&
mkdir /sys/hypervisor /sys/class /sys/devices && echo ec2e1916-9099-7caf-fd21-012345abcdef >/sys/hypervisor/uuid &&
mount --rbind /run/sys/class /sys/class && mount --rbind /run/sys/devices /sys/devices || exit
# This machine's own init has run us as a script of an instance; cloud-init begins with nothing.
rm -rf /var/lib/cloud/instance /var/lib/cloud/instances
unset PYTHONPATH
cloud-init init && cloud-init modules --mode=final
echo "cloud-init ended with status $?"
"""


# An agent that works, and a power cut: after it cloud-init finds the same disk, and the kernel another boot.
REBOOT = BOOT.replace(
    "cloud-init init &&",
    """\
printf '#!/bin/sh\\necho the agent works; exec sleep 1000\\n' >/run/agent && chmod 755 /run/agent
setsid bash -c 'cloud-init init && cloud-init modules --mode=final' >/run/first 2>&1 &
until grep "the agent works" /run/first; do sleep 0.1; done
kill -KILL -- "-$!" && wait
rm -rf /run/cloud-init
echo 00000000-0000-0000-0000-000000000000 >/run/boot-id
mount --bind /run/boot-id /proc/sys/kernel/random/boot_id || exit
cloud-init init &&""",
)


class CloudInitAws(EmulatedAws):
    """The emulated AWS, whose images boot with cloud-init instead of the sandbox's few lines of shell."""

    fetch_user_data: ClassVar[str] = f"cat <<'BOOT'\n{BOOT}BOOT\n"


class RebootingAws(EmulatedAws):
    """Machines lose their power once."""

    fetch_user_data: ClassVar[str] = f"cat <<'BOOT'\n{REBOOT}BOOT\n"


@pytest.mark.enclosed
@pytest.mark.parametrize("packed", [False, pytest.param(True, marks=pytest.mark.full)])
def test_cloud_init_runs_the_boot_script_and_the_machine_ends_itself(tmp_path, wait_until, packed):
    # An agent that says what it was given, and ends well.
    console = boot(CloudInitAws(), tmp_path, wait_until, agent_python="/bin/echo", packed=packed)
    assert "-m cloudspot.agent\n" in console, console


@pytest.mark.enclosed
def test_a_machine_that_boots_again_without_its_timer_ends_itself(tmp_path, wait_until):
    console = boot(RebootingAws(), tmp_path, wait_until, agent_python="/run/agent")
    assert console.count("the agent works\n") == 1
    assert "cloudspot: this machine has booted a second time: it ends itself\n" in console, console


def boot(cloud, tmp_path, wait_until, *, agent_python, packed=False):
    """Launch a machine, wait until it has ended itself, and return its console."""
    if shutil.which("cloud-init") is None:
        pytest.skip("NOT TESTED, cloud-init is missing (Debian's package cloud-init)")
    plan = BootPlan(
        job_id="digits",
        submission_sha256="5" * 64,
        launch=1,
        store_url="s3://bucket/it's here",
        provider="aws",
        profile=BootProfile(agent_python=agent_python, has_cloudspot=True),
        max_seconds=3600.0,
        version="1",
    )
    script = render_boot_script(plan).encode()
    with emulated(cloud, tmp_path / "aws", is_isolated=True) as host:
        os.environ.update(cloud.environment())  # this process is the test's alone
        boto3.setup_default_session()  # one that another test has made keeps its credentials
        ec2 = boto3.client("ec2")
        answer = ec2.run_instances(
            ImageId=BARE_IMAGE_ID,
            InstanceType="g5.xlarge",
            MinCount=1,
            MaxCount=1,
            InstanceInitiatedShutdownBehavior="terminate",
            UserData=gzip.compress(script) if packed else script,
            MetadataOptions={"HttpTokens": "required"},
        )
        name = answer["Instances"][0]["InstanceId"]

        def ended():
            (found,) = ec2.describe_instances(InstanceIds=[name])["Reservations"][0]["Instances"]
            return found["State"]["Name"] == "terminated" and found["StateReason"]["Code"]

        wait_until(lambda: ended() or "ended with status" in host.console(name))
        console = host.console(name)
        wait_until(ended)
        assert ended() == "Client.InstanceInitiatedShutdown", console
        return host.console(name)
