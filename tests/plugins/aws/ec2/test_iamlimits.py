"""The emulated IAM refuses policies, counts and names that the real one refuses."""

import json

import pytest
from botocore.exceptions import ClientError
from moto.core import DEFAULT_ACCOUNT_ID
from moto.iam.models import iam_backends


@pytest.fixture
def iam(cloud):
    return cloud.client("iam")


def policy_of(size, *, white_space=""):
    """Return a policy of so many characters, and white space that does not count."""
    statement = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::x"}
    whole = {"Version": "2012-10-17", "Statement": [statement]}
    short = json.dumps(whole, separators=(",", ":"))
    statement["Resource"] += "x" * (size - len(short))
    return json.dumps(whole, separators=("," + white_space, ":" + white_space))


def code_of(call, **parameters):
    with pytest.raises(ClientError) as caught:
        call(**parameters)
    return caught.value.response["Error"]["Code"], caught.value.response["Error"]["Message"]


@pytest.mark.parametrize(("kind", "most"), [("user", 2048), ("group", 5120), ("role", 10240)])
def test_all_inline_policies_of_one_together_may_have_so_many_characters_without_white_space(iam, kind, most):
    name = {f"{kind.title()}Name": "one"}
    trust = {"AssumeRolePolicyDocument": policy_of(200)} if kind == "role" else {}
    getattr(iam, f"create_{kind}")(**name, **trust)
    put = getattr(iam, f"put_{kind}_policy")
    put(**name, PolicyName="a", PolicyDocument=policy_of(most - 400, white_space=" " * 500))
    put(**name, PolicyName="b", PolicyDocument=policy_of(400))
    refused = code_of(put, **name, PolicyName="b", PolicyDocument=policy_of(401))
    assert refused == ("LimitExceeded", f"Maximum policy size of {most} bytes exceeded for {kind} one")
    put(**name, PolicyName="a", PolicyDocument=policy_of(most - 401))
    put(**name, PolicyName="b", PolicyDocument=policy_of(401))


def test_a_managed_policy_and_each_of_its_versions_may_have_6144_characters(iam):
    made = iam.create_policy(PolicyName="whole", PolicyDocument=policy_of(6144))["Policy"]["Arn"]
    refused = ("LimitExceeded", "Cannot exceed quota for PolicySize: 6144")
    assert code_of(iam.create_policy, PolicyName="more", PolicyDocument=policy_of(6145)) == refused
    version = {"PolicyArn": made, "PolicyDocument": policy_of(6145)}
    assert code_of(iam.create_policy_version, **version) == refused


def test_a_roles_trust_may_have_2048_characters(iam):
    iam.create_role(RoleName="a", AssumeRolePolicyDocument=policy_of(2048))
    refused = code_of(iam.create_role, RoleName="b", AssumeRolePolicyDocument=policy_of(2049))
    assert refused == ("LimitExceeded", "Cannot exceed quota for ACLSizePerRole: 2048")


def test_ten_managed_policies_may_be_attached_to_a_user(iam):
    iam.create_user(UserName="one")
    arns = [
        iam.create_policy(PolicyName=f"p{i}", PolicyDocument=policy_of(200))["Policy"]["Arn"]
        for i in range(11)
    ]
    for arn in arns[:10]:
        iam.attach_user_policy(UserName="one", PolicyArn=arn)
    iam.attach_user_policy(UserName="one", PolicyArn=arns[0])
    refused = code_of(iam.attach_user_policy, UserName="one", PolicyArn=arns[10])
    assert refused == ("LimitExceeded", "Cannot exceed quota for PoliciesPerUser: 10")


def test_a_user_may_be_in_ten_groups(iam):
    iam.create_user(UserName="one")
    for i in range(11):
        iam.create_group(GroupName=f"g{i}")
    for i in range(10):
        iam.add_user_to_group(UserName="one", GroupName=f"g{i}")
    refused = code_of(iam.add_user_to_group, UserName="one", GroupName="g10")
    assert refused == ("LimitExceeded", "Cannot exceed quota for GroupsPerUser: 10")


CREATED = {
    "user": ("Users", "UserName", {}),
    "group": ("Groups", "GroupName", {}),
    "role": ("Roles", "RoleName", {"AssumeRolePolicyDocument": policy_of(200)}),
    "instance_profile": ("InstanceProfiles", "InstanceProfileName", {}),
    "policy": ("Policies", "PolicyName", {"PolicyDocument": policy_of(200)}),
}


@pytest.mark.parametrize("kind", CREATED)
def test_two_names_differ_by_more_than_their_case(iam, kind):
    _, parameter, others = CREATED[kind]
    create = getattr(iam, f"create_{kind}")
    create(**{parameter: "Training"}, **others)
    refused = code_of(create, **{parameter: "TRAINING"}, **others)
    assert refused == ("EntityAlreadyExists", "Training already exists.")


@pytest.mark.parametrize("kind", CREATED)
def test_an_account_has_so_many_of_each_kind(iam, kind, monkeypatch):
    what, parameter, others = CREATED[kind]
    summary = iam_backends[DEFAULT_ACCOUNT_ID]["aws"].account_summary
    most = summary.summary_map[what] + 1
    snake = {"InstanceProfiles": "instance_profiles"}.get(what, what.lower())
    monkeypatch.setattr(summary, f"_{snake}_quota", most)
    create = getattr(iam, f"create_{kind}")
    create(**{parameter: "a"}, **others)
    refused = code_of(create, **{parameter: "b"}, **others)
    assert refused == ("LimitExceeded", f"Cannot exceed quota for {what}PerAccount: {most}")


def test_a_policy_has_five_versions_a_profile_one_role_and_a_user_two_keys(iam):
    made = iam.create_policy(PolicyName="one", PolicyDocument=policy_of(200))["Policy"]["Arn"]
    for _ in range(4):
        iam.create_policy_version(PolicyArn=made, PolicyDocument=policy_of(200))
    version = {"PolicyArn": made, "PolicyDocument": policy_of(200)}
    assert code_of(iam.create_policy_version, **version)[0] == "LimitExceeded"
    iam.create_instance_profile(InstanceProfileName="one")
    for name in ("a", "b"):
        iam.create_role(RoleName=name, AssumeRolePolicyDocument=policy_of(200))
    iam.add_role_to_instance_profile(InstanceProfileName="one", RoleName="a")
    second = {"InstanceProfileName": "one", "RoleName": "b"}
    assert code_of(iam.add_role_to_instance_profile, **second)[0] == "LimitExceeded"
    iam.create_user(UserName="one")
    for _ in range(2):
        iam.create_access_key(UserName="one")
    assert code_of(iam.create_access_key, UserName="one")[0] == "LimitExceeded"


@pytest.mark.parametrize(
    ("call", "parameters"),
    [
        ("create_role", {"RoleName": "r" * 65, "AssumeRolePolicyDocument": policy_of(200)}),
        ("create_role", {"RoleName": "with space", "AssumeRolePolicyDocument": policy_of(200)}),
        ("create_policy", {"PolicyName": "p" * 129, "PolicyDocument": policy_of(200)}),
        ("create_policy", {"PolicyName": "a/b", "PolicyDocument": policy_of(200)}),
        ("create_instance_profile", {"InstanceProfileName": "über"}),
        ("put_role_policy", {"RoleName": "cloudspot-node", "PolicyName": "a:b", "PolicyDocument": "{}"}),
    ],
)
def test_names_have_the_lengths_and_characters_of_iams_model(iam, call, parameters):
    code, message = code_of(getattr(iam, call), **parameters)
    assert code == "ValidationError"
    assert "failed to satisfy constraint" in message
