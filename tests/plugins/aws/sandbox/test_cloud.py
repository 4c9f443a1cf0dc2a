"""The emulated account as a whole."""

import boto3
import pytest
from support.worlds.listed_host import ListedHost

from cloudspot_aws_sandbox.cloud import EmulatedAws

pytestmark = pytest.mark.full


def test_an_account_is_on_its_own_hosts_network_whatever_the_process_had_before(tmp_path, monkeypatch):
    for network in ("10.77.0.0/16", "10.78.0.0/16"):
        cloud, host = EmulatedAws(), ListedHost()
        host.network = network
        cloud.start(host, address="127.0.0.1", directory=tmp_path)
        try:
            for name, value in cloud.environment().items():
                monkeypatch.setenv(name, value)
            (found,) = boto3.session.Session().client("ec2").describe_vpcs()["Vpcs"]
            assert (found["IsDefault"], found["CidrBlock"]) == (True, network)
        finally:
            cloud.stop()
