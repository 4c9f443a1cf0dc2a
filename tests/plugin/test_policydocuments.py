"""Which of two policies allows more."""

import pytest

from cloudspot.plugin.policydocuments import excess, lacking

READ = {"Effect": "Allow", "Action": ["s3:GetObject", "s3:List*"], "Resource": "arn:aws:s3:::b/*"}


def policy(*statements):
    return {"Version": "2012-10-17", "Statement": list(statements)}


@pytest.mark.parametrize(
    "narrower",
    [
        READ,
        {**READ, "Action": "s3:GetObject"},
        {**READ, "Action": "S3:getobject"},
        {**READ, "Action": "s3:ListParts"},
        {**READ, "Resource": "arn:aws:s3:::b/jobs/*"},
        {**READ, "Condition": {"Bool": {"aws:SecureTransport": "true"}}},
        {"Effect": "Deny", "Action": "*", "Resource": "*"},
    ],
)
def test_what_a_policy_has_within_another_is_no_excess(narrower):
    assert excess([policy(narrower)], [policy(READ)]) == []


@pytest.mark.parametrize(
    ("wider", "said"),
    [
        ({**READ, "Action": "s3:*"}, "it allows s3:* on arn:aws:s3:::b/*"),
        ({**READ, "Action": "s3:GetObject", "Resource": "*"}, "it allows s3:GetObject on *"),
        (
            {**READ, "Action": "s3:GetObject", "Resource": "arn:aws:s3:::b*"},
            "it allows s3:GetObject on arn:aws:s3:::b*",
        ),
        (
            {"Effect": "Allow", "NotAction": "iam:*", "Resource": "*"},
            "it allows everything except what NotAction names",
        ),
        (
            {**READ, "Action": "s3:GetObject", "Principal": "*"},
            "it allows s3:GetObject on arn:aws:s3:::b/* to *",
        ),
    ],
)
def test_what_a_policy_has_beyond_another_is_told(wider, said):
    assert excess([policy(wider)], [policy(READ)]) == [said]


def test_a_condition_of_the_wanted_policy_must_be_there():
    bound = {**READ, "Condition": {"Null": {"aws:ResourceTag/a": "false"}}}
    assert excess([policy({**bound, "Action": "s3:GetObject"})], [policy(bound)]) == []
    assert excess([policy({**READ, "Action": "s3:GetObject"})], [policy(bound)]) == [
        "it allows s3:GetObject on arn:aws:s3:::b/*"
    ]


def test_a_trust_is_compared_by_its_principals():
    def trusts(*services):
        return policy(
            {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": list(services)}}
        )

    assert excess([trusts("ec2.amazonaws.com")], [trusts("ec2.amazonaws.com")]) == []
    assert excess([trusts("ec2.amazonaws.com", "x.amazonaws.com")], [trusts("ec2.amazonaws.com")]) == [
        "it allows sts:AssumeRole on * to Service x.amazonaws.com"
    ]


def test_what_a_policy_lacks_is_told_the_other_way_round():
    assert lacking([policy({**READ, "Action": "s3:GetObject"})], [policy(READ)]) == [
        "it does not allow s3:List* on arn:aws:s3:::b/*"
    ]
    assert lacking([], [policy(READ)]) == [
        "it does not allow s3:GetObject on arn:aws:s3:::b/*",
        "it does not allow s3:List* on arn:aws:s3:::b/*",
    ]
