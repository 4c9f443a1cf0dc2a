"""The fake is stricter than the cloud: what a plain client's luck would let pass is refused."""

import json
from datetime import datetime, timezone

import pytest
import requests
from aliyunsdkcore.acs_exception.exceptions import ServerException

from cloudspot.model import EndReason
from cloudspot_aliyun_sandbox import rpc

IMAGE = "ubuntu_24_04_x64_20G_alibase_20261101.vhd"


def run(cloud, **parameters):
    """Launch one machine of ones own."""
    known = {
        "ImageId": IMAGE,
        "InstanceType": "ecs.g7.large",
        "VSwitchId": "vsw-bp1cnhangzhou0001",
        "SecurityGroupId": next(iter(cloud.place.groups)),
    }
    chosen = {name: value for name, value in {**known, **parameters}.items() if value is not None}
    return cloud.ask("RunInstances", **chosen)["InstanceIdSets"]["InstanceIdSet"]


def signed(cloud, **changes):
    """Return the parameters of a good request, signed after ``changes``."""
    parameters = {
        "AccessKeyId": "LTAI5tExampleKeyOfATest",
        "Action": "DescribeRegions",
        "Format": "JSON",
        "SignatureMethod": "HMAC-SHA1",
        "SignatureNonce": str(len(cloud.faults.calls)),
        "SignatureVersion": "1.0",
        "Timestamp": f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
        "Version": "2014-05-26",
        "RegionId": "cn-hangzhou",
        **changes,
    }
    parameters = {name: value for name, value in parameters.items() if value is not None}
    text = rpc.string_to_sign("GET", parameters)
    parameters.setdefault("Signature", rpc.sign(text, "ExampleSecretOfATest30Characters"))
    return parameters


def get(cloud, parameters):
    answer = requests.get(cloud.url, params=parameters, timeout=10).json()
    return answer.get("Code", "")


# --- signatures -----------------------------------------------------------------------------------


def test_a_request_that_is_signed_as_the_reference_says_is_answered(cloud):
    assert get(cloud, signed(cloud)) == ""


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"Signature": "AAAA"}, "SignatureDoesNotMatch"),
        ({"AccessKeyId": "LTAI5tNobodys"}, "InvalidAccessKeyId.NotFound"),
        ({"SignatureNonce": None}, "MissingSignatureNonce"),
        ({"Timestamp": "2026-01-01T00:00:00Z"}, "InvalidTimeStamp.Expired"),
        ({"Timestamp": "today"}, "InvalidTimeStamp.Format"),
        ({"SignatureMethod": "HMAC-MD5"}, "InvalidParameter"),
        ({"SecurityToken": "x"}, "InvalidSecurityToken.MismatchWithAccessKey"),
        ({"Version": "2013-01-10"}, "InvalidVersion"),
        ({"Action": "DescribeEverything"}, "InvalidAction.NotFound"),
        ({"RegionId": "cn-atlantis"}, "InvalidRegionId.NotFound"),
        ({"Colour": "red"}, "SandboxUnknownParameter"),
    ],
)
def test_another_request_is_refused(cloud, changes, code):
    assert get(cloud, signed(cloud, **changes)) == code


def test_a_nonce_counts_once(cloud):
    parameters = signed(cloud)
    assert [get(cloud, parameters) for _ in range(2)] == ["", "SignatureNonceUsed"]


def test_a_changed_parameter_breaks_the_signature(cloud):
    assert get(cloud, {**signed(cloud), "RegionId": "cn-beijing"}) == "SignatureDoesNotMatch"


# --- parameters -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({"Amount": "two"}, "InvalidParameter"),
        ({"Amount": 101}, "InvalidParam.Amount"),
        ({"Amount": 1, "MinAmount": 2}, "InvalidMinAmount.Malformed"),
        ({"ImageId": None}, "MissingParameter"),
        ({"VSwitchId": None}, "MissingParameter"),
        ({"SecurityGroupId": None}, "MissingParameter"),
        ({"ImageId": "m-none"}, "InvalidImageId.NotFound"),
        ({"InstanceType": "ecs.none.large"}, "InvalidInstanceType.ValueNotSupported"),
        ({"InstanceType": "ecs.g8y.large"}, "ImageNotSupportInstanceType"),
        ({"InstanceType": "ecs.gn7i-c8g1.2xlarge"}, "InvalidResourceType.NotSupported"),
        ({"ZoneId": "cn-hangzhou-i"}, "InvalidParameter.Mismatch"),
        ({"SpotStrategy": "SpotWithPriceLimit"}, "InvalidSpotPriceLimit"),
        ({"SpotStrategy": "SpotWithPriceLimit", "SpotPriceLimit": 0.1234}, "InvalidSpotPriceLimit"),
        ({"SpotStrategy": "SpotAsPriceGo", "SpotPriceLimit": 1.0}, "InvalidSpotPriceLimit"),
        ({"SpotStrategy": "SpotAsPriceGo", "SpotDuration": 2}, "InvalidSpotDuration"),
        ({"SpotStrategy": "Spot"}, "InvalidSpotStrategy"),
        ({"SpotStrategy": "SpotAsPriceGo", "InstanceType": "ecs.t6-c1m4.large"}, "InvalidSpotAuthorized"),
        ({"UserData": "no base64!"}, "InvalidUserData.Base64FormatInvalid"),
        ({"UserData": "QUFB" * 10923}, "InvalidUserData.SizeExceeded"),
        ({"ClientToken": "x" * 65}, "InvalidClientToken.ValueNotSupported"),
        ({"HostName": "a--b"}, "InvalidHostName.Malformed"),
        ({"HostName": "-a"}, "InvalidHostName.Malformed"),
        ({"HostName": "a" * 63 + "[0,3]"}, "InvalidHostName.Malformed"),
        ({"InstanceName": "8digits"}, "InvalidInstanceName.Malformed"),
        ({"SystemDisk": {"Size": 5}}, "InvalidSystemDiskSize.LessThanImageSize"),
        (
            {"SystemDisk": {"Category": "cloud_ssd", "PerformanceLevel": "PL1"}},
            "InvalidPerformanceLevel.Malformed",
        ),
        ({"HttpTokens": "always"}, "InvalidParameter"),
        ({"HttpPutResponseHopLimit": 65}, "InvalidParameter"),
        ({"Tag": [{"Key": "a", "Value": "1"}, {"Key": "a", "Value": "2"}]}, "Duplicate.TagKey"),
        ({"Tag": [{"Key": "acs:a", "Value": "1"}]}, "InvalidTagKey.Malformed"),
        ({"Tag": [{"Key": "a", "Value": "http://x"}]}, "InvalidTagValue.Malformed"),
        ({"Tag": [{"Key": f"t{i}"} for i in range(21)]}, "InvalidTagCount"),
        ({"AutoReleaseTime": "2026-09-21T14:43:00Z"}, "InvalidAutoReleaseTime.Malformed"),
        ({"AutoReleaseTime": "2036-09-21T14:43:00Z"}, "InvalidAutoReleaseTime.Malformed"),
        ({"KeyPairName": "none"}, "InvalidKeyPairName.NotFound"),
        ({"RamRoleName": "none"}, "InvalidRamRole.NotFound"),
        ({"InstanceChargeType": "PrePaid"}, "SandboxNotImplemented"),
    ],
)
def test_a_launch_that_the_real_one_would_refuse_is_refused(cloud, parameters, code):
    with pytest.raises(ServerException) as error:
        run(cloud, **parameters)
    assert error.value.get_error_code() == code
    assert cloud.alive == []


def test_a_dry_run_makes_nothing(cloud):
    with pytest.raises(ServerException, match="DryRunOperation"):
        run(cloud, DryRun=True)
    assert cloud.alive == []


@pytest.mark.parametrize(
    ("pattern", "amount", "names"),
    [
        ("a-[0,1]", 3, ["a-0", "a-1", "a-2"]),
        ("a-[0,2]", 2, ["a-00", "a-01"]),
        ("a-[99,3]-b", 2, ["a-099-b", "a-100-b"]),
        ("a-[1234,1]", 1, ["a-001234"]),
        ("a-[]", 1, ["a-000000"]),
    ],
)
def test_names_are_numbered_as_the_reference_says(cloud, pattern, amount, names):
    made = run(cloud, HostName=pattern, Amount=amount)
    assert [cloud.host.machines[one].host_name for one in made] == names


# --- machines -------------------------------------------------------------------------------------


def test_the_release_time_of_a_launch_is_carried_out(cloud):
    (one,) = run(cloud, AutoReleaseTime="2026-09-21T15:00:30Z")
    assert cloud.describe(one)[one]["AutoReleaseTime"] == "2026-09-21T15:00Z"
    cloud.now = datetime(2026, 9, 21, 15, 0, tzinfo=timezone.utc).timestamp()
    assert cloud.describe(one) == {}
    assert cloud.host.terminated == [one]


def test_a_running_machine_is_released_by_force_only(cloud):
    (one,) = run(cloud)
    with pytest.raises(ServerException, match="IncorrectInstanceStatus"):
        cloud.ask("DeleteInstances", InstanceId=[one])
    cloud.ask("DeleteInstance", InstanceId=one, Force=True)
    assert cloud.describe(one) == {}
    with pytest.raises(ServerException, match=r"InvalidInstanceId\.NotFound"):
        cloud.ask("DeleteInstance", InstanceId=one, Force=True)


def test_a_stopped_machine_counts_against_stock_until_it_is_released(cloud):
    cloud.faults.capacity["*", "*", "*"] = 1
    (one,) = run(cloud)
    cloud.host.end(one, EndReason.SELF)
    with pytest.raises(ServerException, match=r"OperationDenied\.NoStock"):
        run(cloud)
    cloud.ask("DeleteInstance", InstanceId=one)
    assert len(run(cloud)) == 1


def test_metadata_options_that_are_not_named_fall_back_to_their_defaults(cloud):
    (one,) = run(cloud, HttpTokens="required", Tag=[{"Key": "a", "Value": "b"}])
    assert cloud.host.tags[one] == {}
    cloud.ask("ModifyInstanceMetadataOptions", InstanceId=one, InstanceMetadataTags="enabled")
    assert cloud.describe(one)[one]["MetadataOptions"]["HttpTokens"] == "optional"
    assert cloud.host.tags[one] == {"a": "b"}


def test_a_listing_by_pages_of_both_kinds_holds_each_machine_once(cloud):
    made = set(run(cloud, Amount=5))
    by_token, token = [], ""
    while True:
        more = {"NextToken": token} if token else {}
        answer = cloud.ask("DescribeInstances", MaxResults=2, **more)
        by_token += [one["InstanceId"] for one in answer["Instances"]["Instance"]]
        token = answer.get("NextToken", "")
        if not token:
            break
    by_number = [
        one["InstanceId"]
        for number in (1, 2, 3)
        for one in cloud.ask("DescribeInstances", PageSize=2, PageNumber=number)["Instances"]["Instance"]
    ]
    assert (len(by_token), set(by_token)) == (5, made)
    assert by_number == by_token


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({"MaxResults": 101}, "InvalidParameter"),
        ({"InstanceIds": "i-1"}, "InvalidParameter"),
        ({"InstanceIds": json.dumps(["i-1"] * 101)}, "InvalidParameter"),
        ({"VpcId": "vpc-1"}, "SandboxNotImplemented"),
        ({"Tag": [{"Value": "x"}]}, "InvalidTagKey.Malformed"),
    ],
)
def test_a_listing_that_the_fake_does_not_know_is_refused_and_not_answered_wrongly(cloud, parameters, code):
    with pytest.raises(ServerException) as error:
        cloud.ask("DescribeInstances", **parameters)
    assert error.value.get_error_code() == code


def test_every_call_is_recorded_with_its_answer(cloud):
    run(cloud)
    call = cloud.faults.calls[-1]
    assert (call.service, call.action, call.region, call.error) == (
        "ecs",
        "RunInstances",
        "cn-hangzhou",
        None,
    )
    assert call.access_key == "LTAI5tExampleKeyOfATest"
