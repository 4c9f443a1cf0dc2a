"""The commands that docs/aliyun.md tells a user to run, run as written on the emulated account.

Alibaba Cloud's command line is no dependency of the tests. It passes an action's parameters on as they are, so
each of its commands is a request of the plugin's SDK here; the emulation refuses whatever is unknown.
"""

import json

import pytest
from support.clouds.documented_setup import ROOT, documented_commands, filled, options_of

from cloudspot.model import Resources
from cloudspot.testing import plaincalls

HERE = {"YOU": "ada", "BUCKET": "bucket"}
"""What a user writes in place of the page's own words."""
PRODUCTS = {"ecs": "Ecs", "ram": "Ram", "vpc": "Vpc"}
VPC = "vpc-..."
"""In place of the answer to the command before."""


def run(cloud, arguments, answers):
    """Run ``aliyun PRODUCT ACTION --Name value ...``, and note the answer."""
    (product, action, *rest), parameters = options_of(arguments)
    assert rest == []
    region = parameters.pop("RegionId", None)
    assert region in {None, cloud.place.region}
    if parameters.get("VpcId") == VPC:
        parameters["VpcId"] = answers["CreateDefaultVpc"]["VpcId"]
    answers[action] = cloud.ask(action, PRODUCTS[product], **parameters)


@pytest.fixture
def answers(cloud):
    """Run the page's commands in an account with a user, and nothing else; return the answers by action."""
    cloud.account.roles.clear()
    cloud.account.ram.users.add("ada")
    cloud.place.remove_network()
    first, *others = documented_commands("docs/aliyun.md", "aliyun", HERE)
    assert first == ["oss", "mb", "oss://bucket"]  # OSS has a test of its own for buckets
    found = {}
    for arguments in others:
        run(cloud, arguments, found)
    return found


def written(path):
    return json.loads(filled((ROOT / path).read_text(), HERE))


def test_the_documented_setup_gives_the_user_and_the_machines_role_their_policies(cloud, answers):
    assert cloud.account.roles == {"cloudspot-node": "ecs.aliyuncs.com"}
    held = {
        name: (json.loads(one.versions[-1]), one.roles, one.users)
        for name, one in cloud.account.ram.policies.items()
    }
    assert held == {
        "cloudspot-driver": (
            written("plugins/aliyun/cloudspot_aliyun/policy-driver.json"),
            {"cloudspot-node"},
            set(),
        ),
        "cloudspot-node": (written("docs/aliyun/policy-node.json"), {"cloudspot-node"}, set()),
        "cloudspot-submitter": (written("docs/aliyun/policy-submitter.json"), set(), {"ada"}),
    }


def test_a_job_finds_the_documented_network_by_itself(cloud, answers):
    offers = plaincalls.offers(cloud.provider().provisioner(), Resources())
    assert {one.zone for one in offers} == {"cn-hangzhou-i"}
