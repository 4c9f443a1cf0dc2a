"""The commands that docs/aws.md tells a user to run, run as written on the emulated account.

AWS's command line is no dependency of the tests: its operations and parameters are read from botocore's
models, as it reads them itself, and everything that it would refuse raises here.
"""

import json

from botocore import xform_name
from support.clouds.documented_setup import ROOT, documented_commands, filled, options_of

HERE = {"YOU": "ada", "ACCOUNT": "123456789012", "BUCKET": "bucket"}
"""What a user writes in place of the page's own words."""


def run(cloud, arguments):
    """Run ``aws SERVICE OPERATION --option value ...`` with boto3."""
    (service, operation, *rest), options = options_of(arguments)
    client = cloud.client(service.removesuffix("api"))
    if (service, operation) == ("s3", "mb"):
        (url,) = rest
        client.create_bucket(Bucket=url.removeprefix("s3://"))
        return
    assert rest == []
    model = client.meta.service_model
    (name,) = [one for one in model.operation_names if xform_name(one, "-") == operation]
    members = {xform_name(one, "-"): one for one in model.operation_model(name).input_shape.members}
    parameters = {}
    for option, value in options.items():
        path = value.removeprefix("file://")
        text = value if path == value else filled((ROOT / path).read_text(), HERE)
        shape = model.operation_model(name).input_shape.members[members[option]]
        parameters[members[option]] = json.loads(text) if shape.type_name == "structure" else text
    getattr(client, xform_name(name))(**parameters)


def test_the_documented_setup_gives_the_user_and_the_roles_their_policies_within_iams_limits(cloud):
    cloud._iam.reset()
    iam = cloud.client("iam")
    iam.create_user(UserName="ada")
    for arguments in documented_commands("docs/aws.md", "aws", HERE):
        run(cloud, arguments)
    (attached,) = iam.list_attached_user_policies(UserName="ada")["AttachedPolicies"]
    version = iam.get_policy(PolicyArn=attached["PolicyArn"])["Policy"]["DefaultVersionId"]
    found = iam.get_policy_version(PolicyArn=attached["PolicyArn"], VersionId=version)
    written = json.loads(filled((ROOT / "docs/aws/policy-submitter.json").read_text(), HERE))
    assert found["PolicyVersion"]["Document"] == written
    roles = {one["RoleName"] for one in iam.list_roles()["Roles"]}
    assert roles == {"cloudspot-node", "cloudspot-drill", "cloudspot-limit"}
    assert iam.list_role_policies(RoleName="cloudspot-node")["PolicyNames"] == [
        "cloudspot-node",
        "cloudspot-driver",
    ]
    profile = iam.get_instance_profile(InstanceProfileName="cloudspot-node")["InstanceProfile"]
    assert [one["RoleName"] for one in profile["Roles"]] == ["cloudspot-node"]
    [rule] = cloud.client("s3").get_bucket_lifecycle_configuration(Bucket="bucket")["Rules"]
    assert rule["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 3}
