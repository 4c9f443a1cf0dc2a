"""The commands that docs/aliyun.md tells a user to run: machines that drive jobs get a driver's policy."""

import json

from support.clouds.aliyun_command_line import run_command
from support.clouds.documented_setup import documented_commands, filled

from cloudspot_aliyun import permissions

HERE = {"BUCKET": "bucket"}
"""What a user writes in place of the page's own words."""


def test_the_documented_commands_give_the_machines_role_a_drivers_policy(cloud):
    for arguments in documented_commands("docs/aliyun.md", "aliyun", HERE):
        run_command(
            lambda action, product, parameters: cloud.ask(action, product, **parameters),
            arguments,
            region=cloud.place.region,
        )
    held = {
        name: (json.loads(one.versions[-1]), one.roles, one.users)
        for name, one in cloud.account.ram.policies.items()
    }
    text = (permissions.DIRECTORY / "policy-driver.json").read_text()
    assert held == {"cloudspot-driver": (json.loads(filled(text, HERE)), {"cloudspot-node"}, set())}
