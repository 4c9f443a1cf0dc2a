import os
import shutil
import subprocess
import sys

import pytest

from cloudspot.agent.training.launching.network_interface import (
    GLOO_INTERFACE,
    gloo_environment,
    interface_of,
)

ASK = "from cloudspot.agent.training.launching.network_interface import interface_of; print(interface_of('10.9.8.7'))"


def test_a_loopback_address_and_a_foreign_one_name_no_interface():
    assert interface_of("127.0.0.1") is None
    assert interface_of("192.0.2.1") is None  # RFC 5737: nobody's
    assert gloo_environment("127.0.0.1", {}) == {}


@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None,
    reason="makes a network namespace: needs Linux, root and ip",
)
def test_the_interface_is_the_one_with_the_address():
    script = (
        "ip link set lo up && ip link add cs0 type veth peer name cs1 && "
        f'ip addr add 10.9.8.7/24 dev cs1 && "{sys.executable}" -c "{ASK}"'
    )
    answer = subprocess.run(["unshare", "--net", "sh", "-c", script], capture_output=True, text=True)
    assert answer.stdout == "cs1\n", answer.stderr


def test_what_the_job_has_set_stays():
    assert gloo_environment("10.9.8.7", {GLOO_INTERFACE: "eth1"}) == {}
