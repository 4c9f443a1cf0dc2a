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
SUBSTITUTION = re.compile(r"(\w+)=\$\((.*)\)")


def documented_commands():
    """Return the commands of AWS's that stand in the page, in its order, each in one line."""
    blocks = re.findall(
        r"^```sh\n(.*?)^```", (ROOT / "docs" / "aws.md").read_text(), re.DOTALL | re.MULTILINE
    )
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [one for one in lines if re.match(r"(\w+=\$\()?aws ", one)]


class CommandLine:
    """Runs ``aws SERVICE OPERATION --option value ...`` with boto3, and keeps variables as a shell does."""

    def __init__(self, cloud):
        self.client = cloud.client
        self.variables = {"YOU": "ada"}

    def run(self, line):
        assigned = SUBSTITUTION.fullmatch(line)
        if assigned is not None:
            self.variables[assigned[1]] = self._call(shlex.split(assigned[2]))
        else:
            for name, value in self.variables.items():
                line = line.replace(f'"${name}"', value).replace(f" {name} ", f" {value} ")
            self._call(shlex.split(line))

    def _call(self, words):
        program, service, operation, *rest = words
        assert program == "aws"
        if (service, operation) == ("s3", "mb"):
            self.client("s3").create_bucket(Bucket=rest[0].removeprefix("s3://").lower())
            return None
        options = dict(zip(rest[::2], rest[1::2], strict=True))
        query, output = options.pop("--query", None), options.pop("--output", "json")
        client = self.client(service)
        members = client.meta.service_model.operation_model(
            {xform_name(one, "-"): one for one in client.meta.service_model.operation_names}[operation]
        ).input_shape.members
        parameters = {xform_name(one, "-"): one for one in members}
        values = {}
        for option, value in options.items():
            name = parameters[option.removeprefix("--")]
            path = value.removeprefix("file://")
            values[name] = value if path == value else (ROOT / path).read_text().replace("BUCKET", "bucket")
        answer = getattr(client, xform_name(client.meta.method_to_api_mapping[operation.replace("-", "_")]))(
            **values
        )
        if query is None:
            return None
        assert output == "text"
        for part in query.split("."):
            answer = answer[part]
        return answer


def test_the_documented_setup_gives_the_user_and_the_roles_their_policies_within_iams_limits(cloud):
    cloud._iam.reset()
    iam = cloud.client("iam")
    iam.create_user(UserName="ada")
    shell = CommandLine(cloud)
    for line in documented_commands():
        shell.run(line)
    (attached,) = iam.list_attached_user_policies(UserName="ada")["AttachedPolicies"]
    version = iam.get_policy(PolicyArn=attached["PolicyArn"])["Policy"]["DefaultVersionId"]
    found = iam.get_policy_version(PolicyArn=attached["PolicyArn"], VersionId=version)
    written = json.loads((ROOT / "docs/aws/policy-submitter.json").read_text().replace("BUCKET", "bucket"))
    assert found["PolicyVersion"]["Document"] == written
    roles = {one["RoleName"] for one in iam.list_roles()["Roles"]}
    assert roles == {"cloudspot-node", "cloudspot-drill", "cloudspot-limit"}
    assert iam.list_role_policies(RoleName="cloudspot-node")["PolicyNames"] == [
        "cloudspot-node",
        "cloudspot-driver",
    ]
    profile = iam.get_instance_profile(InstanceProfileName="cloudspot-node")["InstanceProfile"]
    assert [one["RoleName"] for one in profile["Roles"]] == ["cloudspot-node"]
