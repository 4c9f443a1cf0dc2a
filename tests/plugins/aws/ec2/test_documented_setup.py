"""The commands that docs/aws.md tells a user to run, run as written on the emulated account.

AWS's command line is no dependency of the tests: its operations and parameters are read from botocore's
models, as it reads them itself, and everything that it would refuse raises here.
"""

import json
import re
import shlex
from pathlib import Path

from botocore import xform_name

ROOT = Path(__file__).parents[4]
HERE = {"YOU": "ada", "ACCOUNT": "123456789012", "BUCKET": "bucket"}
"""What a user writes in place of the page's own words."""


def documented_commands():
    """Return the commands of AWS's that stand in the page, in its order, each in one line."""
    blocks = re.findall(
        r"^```sh\n(.*?)^```", (ROOT / "docs" / "aws.md").read_text(), re.DOTALL | re.MULTILINE
    )
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [one for one in lines if one.startswith("aws ")]


def filled(text):
    for word, value in HERE.items():
        text = re.sub(rf"\b{word}\b", value, text)
    return text


def run(cloud, line):
    """Run ``aws SERVICE OPERATION --option value ...`` with boto3."""
    _, service, operation, *rest = shlex.split(filled(line))
    client = cloud.client(service)
    if (service, operation) == ("s3", "mb"):
        client.create_bucket(Bucket=rest[0].removeprefix("s3://"))
        return
    model = client.meta.service_model
    (name,) = [one for one in model.operation_names if xform_name(one, "-") == operation]
    members = {xform_name(one, "-"): one for one in model.operation_model(name).input_shape.members}
    parameters = {}
    for option, value in zip(rest[::2], rest[1::2], strict=True):
        path = value.removeprefix("file://")
        text = value if path == value else filled((ROOT / path).read_text())
        parameters[members[option.removeprefix("--")]] = text
    getattr(client, xform_name(name))(**parameters)


def test_the_documented_setup_gives_the_user_and_the_roles_their_policies_within_iams_limits(cloud):
    cloud._iam.reset()
    iam = cloud.client("iam")
    iam.create_user(UserName="ada")
    for line in documented_commands():
        run(cloud, line)
    (attached,) = iam.list_attached_user_policies(UserName="ada")["AttachedPolicies"]
    version = iam.get_policy(PolicyArn=attached["PolicyArn"])["Policy"]["DefaultVersionId"]
    found = iam.get_policy_version(PolicyArn=attached["PolicyArn"], VersionId=version)
    written = json.loads(filled((ROOT / "docs/aws/policy-submitter.json").read_text()))
    assert found["PolicyVersion"]["Document"] == written
    roles = {one["RoleName"] for one in iam.list_roles()["Roles"]}
    assert roles == {"cloudspot-node", "cloudspot-drill", "cloudspot-limit"}
    assert iam.list_role_policies(RoleName="cloudspot-node")["PolicyNames"] == [
        "cloudspot-node",
        "cloudspot-driver",
    ]
    profile = iam.get_instance_profile(InstanceProfileName="cloudspot-node")["InstanceProfile"]
    assert [one["RoleName"] for one in profile["Roles"]] == ["cloudspot-node"]
