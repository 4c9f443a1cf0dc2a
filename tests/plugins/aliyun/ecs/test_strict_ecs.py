"""The fake is stricter than the cloud: what a plain client's luck would let pass is refused."""

import hashlib
import hmac
import json
from datetime import datetime, timezone

import pytest
import requests
from aliyunsdkcore.acs_exception.exceptions import ServerException

from cloudspot.model import EndReason
from cloudspot_aliyun.api import ask
from cloudspot_aliyun_sandbox import acs3, rpc
from cloudspot_aliyun_sandbox.account import BARE_IMAGE_ID, TORCH_IMAGE_ID

KEY, SECRET = "LTAI5tExampleKeyOfATest", "ExampleSecretOfATest30Characters"
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
        "AccessKeyId": KEY,
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
    parameters.setdefault("Signature", rpc.sign(text, SECRET))
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


# --- signatures of version 3 ------------------------------------------------------------------------


def acs3_headers(cloud, query, *, key=KEY, secret=SECRET, body=b"", **changes):
    """Return the headers of a good request of the second generation's SDKs, signed after ``changes``."""
    headers = {
        "accept": "application/json",
        "host": cloud.url.removeprefix("http://"),
        "x-acs-action": "DescribeRegions",
        "x-acs-content-sha256": hashlib.sha256(body).hexdigest(),
        "x-acs-date": f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
        "x-acs-signature-nonce": str(len(cloud.faults.calls)),
        "x-acs-version": "2014-05-26",
        **{name.replace("_", "-"): value for name, value in changes.items()},
    }
    headers = {name: value for name, value in headers.items() if value is not None}
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    names = ";".join(sorted(headers))
    hashed = headers.get("x-acs-content-sha256", "")
    canonical = f"POST\n/\n{acs3.canonical_query(query)}\n{lines}\n{names}\n{hashed}"
    text = f"ACS3-HMAC-SHA256\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    signature = hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()
    credential = f"Credential={key},SignedHeaders={names},Signature={signature}"
    return {**headers, "Authorization": f"ACS3-HMAC-SHA256 {credential}"}


def post(cloud, headers, query="RegionId=cn-hangzhou", body=b""):
    answer = requests.post(f"{cloud.url}/?{query}", headers=headers, data=body, timeout=10)
    return answer.json()


def test_the_signature_of_version_3_is_the_references():
    """Source: "Request syntax and signature method V3", its example (checked 2026-11)."""
    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/",
        "QUERY_STRING": "RegionId=cn-shanghai&ImageId=win2019_1809_x64_dtc_zh-cn_40G_alibase_20230811.vhd",
        "HTTP_HOST": "ecs.cn-shanghai.aliyuncs.com",
        "HTTP_X_ACS_ACTION": "RunInstances",
        "HTTP_X_ACS_CONTENT_SHA256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "HTTP_X_ACS_DATE": "2023-10-26T10:22:32Z",
        "HTTP_X_ACS_SIGNATURE_NONCE": "3156853299f313e23d1673dc12e1703d",
        "HTTP_X_ACS_VERSION": "2014-05-26",
        "HTTP_AUTHORIZATION": (
            "ACS3-HMAC-SHA256 Credential=YourAccessKeyId,SignedHeaders=host;x-acs-action;x-acs-content-sha256;"
            "x-acs-date;x-acs-signature-nonce;x-acs-version,"
            "Signature=06563a9e1b43f5dfe96b81484da74bceab24a1d853912eee15083a6f0f3283c0"
        ),
    }
    signed = acs3.read(environ, b"")
    assert signed.text == (
        "ACS3-HMAC-SHA256\n7ea06492da5221eba5297e897ce16e55f964061054b7695beedaac1145b1e259"
    )
    assert acs3.sign(signed.text, "YourAccessKeySecret") == signed.signature
    assert (signed.unsigned, signed.is_body_as_signed) == ((), True)


def test_a_request_that_is_signed_by_version_3_is_answered_and_recorded(cloud):
    query = "RegionId=cn-hangzhou"
    for asked in ("", query):  # DescribeRegions itself needs no region, and these SDKs send none
        answer = post(cloud, acs3_headers(cloud, asked), asked)
        assert "cn-hangzhou" in {one["RegionId"] for one in answer["Regions"]["Region"]}
    call = cloud.faults.calls[-1]
    assert (call.service, call.action, call.region, call.access_key) == (
        "ecs",
        "DescribeRegions",
        "cn-hangzhou",
        KEY,
    )


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"secret": "x"}, "SignatureDoesNotMatch"),
        ({"key": "LTAI5tNobodys"}, "InvalidAccessKeyId.NotFound"),
        ({"x_acs_date": "2026-01-01T00:00:00Z"}, "InvalidTimeStamp.Expired"),
        ({"x_acs_date": None}, "MissingTimestamp"),
        ({"x_acs_signature_nonce": None}, "MissingSignatureNonce"),
        ({"x_acs_content_sha256": None}, "IncompleteSignature"),
        ({"x_acs_content_sha256": "0" * 64}, "IncompleteSignature"),
        ({"x_acs_action": "DescribeEverything"}, "InvalidAction.NotFound"),
        ({"x_acs_security_token": "x"}, "InvalidSecurityToken.MismatchWithAccessKey"),
    ],
)
def test_another_request_that_is_signed_by_version_3_is_refused(cloud, changes, code):
    query = "RegionId=cn-hangzhou"
    assert post(cloud, acs3_headers(cloud, query, **changes))["Code"] == code


def test_what_version_3_has_not_signed_is_refused(cloud):
    query = "RegionId=cn-hangzhou"
    headers = acs3_headers(cloud, query)
    assert post(cloud, headers, query="RegionId=cn-beijing")["Code"] == "SignatureDoesNotMatch"
    assert post(cloud, headers, body=b"a=b")["Code"] == "IncompleteSignature"
    assert post(cloud, {**headers, "x-acs-more": "1"})["Code"] == "IncompleteSignature"
    assert "Code" not in post(cloud, headers)
    assert post(cloud, headers)["Code"] == "SignatureNonceUsed"
    garbled = {**headers, "Authorization": "ACS3-HMAC-SHA256 Credential=x"}
    assert post(cloud, garbled)["Code"] == "IncompleteSignature"


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
        (
            {"SystemDisk": {"Category": "cloud_essd", "PerformanceLevel": "PL2", "Size": 460}},
            "InvalidSystemDiskSize.LessThanMinSize",
        ),
        (
            {"SystemDisk": {"Category": "cloud_essd", "PerformanceLevel": "PL3", "Size": 70}},
            "InvalidSystemDiskSize.LessThanMinSize",
        ),
        (
            {"SystemDisk": {"Category": "cloud_essd", "PerformanceLevel": "PL4", "Size": 2000}},
            "InvalidPerformanceLevel.Malformed",
        ),
        ({"InternetMaxBandwidthOut": 101}, "InvalidInternetMaxBandwidthOut.Malformed"),
        ({"ResourceGroupId": "rg-acfmnobodys"}, "InvalidResourceGroup.NotFound"),
        ({"HttpTokens": "always"}, "InvalidHttpTokens.NotSupported"),
        ({"HttpPutResponseHopLimit": 65}, "InvalidHttpPutResponseHopLimit.NotSupported"),
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


def test_an_interface_has_five_security_groups_at_most(cloud):
    groups = [cloud.place.add_group(vpc=cloud.place.vpc) for _ in range(6)]
    with pytest.raises(ServerException) as error:
        run(cloud, SecurityGroupId=None, SecurityGroupIds=groups)
    assert error.value.get_error_code() == "InstanceSecurityGroupLimitExceeded"
    assert len(run(cloud, SecurityGroupId=None, SecurityGroupIds=groups[:5])) == 1


def test_a_deployment_set_holds_twenty_machines_a_zone(cloud):
    made = cloud.ask("CreateDeploymentSet", DeploymentSetName="mine")["DeploymentSetId"]
    run(cloud, Amount=19, DeploymentSetId=made)
    with pytest.raises(ServerException) as error:
        run(cloud, Amount=2, DeploymentSetId=made)
    assert error.value.get_error_code() == "QuotaExceed.DeploymentSetInstanceQuotaFull"
    run(cloud, DeploymentSetId=made)
    run(cloud, DeploymentSetId=made, VSwitchId="vsw-bp1cnhangzhou0002")
    assert len(cloud.alive) == 21


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({"HttpEndpoint": "on"}, "InvalidHttpEndpoint.NotSupported"),
        ({"HttpTokens": "always"}, "InvalidHttpTokens.NotSupported"),
        ({"HttpPutResponseHopLimit": 0}, "InvalidHttpPutResponseHopLimit.NotSupported"),
        ({"InstanceMetadataTags": "yes"}, "InvalidInstanceMetadataTags.NotSupported"),
    ],
)
def test_the_metadata_service_has_no_other_options(cloud, parameters, code):
    (one,) = run(cloud)
    with pytest.raises(ServerException) as error:
        cloud.ask("ModifyInstanceMetadataOptions", InstanceId=one, **parameters)
    assert error.value.get_error_code() == code


def test_a_deployment_set_that_is_not_there_or_not_empty_is_not_deleted(cloud):
    with pytest.raises(ServerException, match=r"InvalidDeploymentSetId\.NotFound"):
        cloud.ask("DeleteDeploymentSet", DeploymentSetId="ds-bp1nobodys0001")
    made = cloud.ask("CreateDeploymentSet", DeploymentSetName="mine")["DeploymentSetId"]
    (one,) = run(cloud, DeploymentSetId=made)
    with pytest.raises(ServerException, match=r"DependencyViolation\.NotEmpty"):
        cloud.ask("DeleteDeploymentSet", DeploymentSetId=made)
    cloud.ask("DeleteInstance", InstanceId=one, Force=True)
    cloud.ask("DeleteDeploymentSet", DeploymentSetId=made)
    assert cloud.place.deployment_sets == {}


@pytest.mark.parametrize("true", ["true", "True"])
def test_a_flag_may_be_written_as_the_second_generations_sdk_writes_it(cloud, true):
    (one,) = run(cloud)
    query = f"RegionId=cn-hangzhou&InstanceId={one}&Force={true}"
    post(cloud, acs3_headers(cloud, query, x_acs_action="DeleteInstance"), query)
    assert cloud.host.terminated == [one]


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
    assert call.access_key == KEY


def test_a_stopped_machine_stays_and_its_disk_cannot_be_deleted(cloud):
    (machine,) = run(cloud, Tag=[{"Key": "a", "Value": "b"}])
    cloud.ask("StopInstance", InstanceId=machine)
    assert cloud.describe(machine)[machine]["Status"] == "Stopped"
    (disk,) = cloud.ask("DescribeDisks", Tag=[{"Key": "a"}])["Disks"]["Disk"]
    assert disk["Status"] == "In_use"
    with pytest.raises(ServerException, match="IncorrectDiskStatus"):
        cloud.ask("DeleteDisk", DiskId=disk["DiskId"])
    cloud.ask("DeleteInstance", InstanceId=machine)
    assert cloud.describe(machine) == {}
    with pytest.raises(ServerException, match=r"InvalidDiskId\.NotFound"):
        cloud.ask("DeleteDisk", DiskId=disk["DiskId"])


# --- images that are made of machines -------------------------------------------------------------

ANY_STATUS = "Creating,Waiting,Available,UnAvailable,CreateFailed,Deprecated"


def make_image(cloud, **parameters):
    """Have an image made, of a machine of one's own if none is named; return its id."""
    known = {"ImageName": "mine"}
    if "InstanceId" not in parameters:
        (known["InstanceId"],) = run(cloud)
    chosen = {name: value for name, value in {**known, **parameters}.items() if value is not None}
    return cloud.ask("CreateImage", **chosen)["ImageId"]


def described(cloud, image, **parameters):
    (found,) = cloud.ask("DescribeImages", ImageId=image, **parameters)["Images"]["Image"]
    return found


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({"InstanceId": None}, "MissingParameter"),
        ({"InstanceId": "i-bp1nobodys0000000"}, "InvalidInstanceId.NotFound"),
        ({"ImageName": "1st"}, "InvalidImageName.Malformed"),
        ({"ImageName": "x"}, "InvalidImageName.Malformed"),
        ({"ImageName": "aliyun-mine"}, "InvalidImageName.Malformed"),
        ({"ImageName": "of mine"}, "InvalidImageName.Malformed"),
        ({"ImageName": "x" * 129}, "InvalidImageName.Malformed"),
        ({"Description": "https://example.com"}, "InvalidDescription.Malformed"),
        ({"Description": "x"}, "InvalidDescription.Malformed"),
        ({"Tag": [{"Key": "", "Value": "x"}]}, "InvalidTagKey.Malformed"),
        ({"Tag": [{"Key": "a", "Value": "x" * 129}]}, "InvalidTagValue.Malformed"),
        ({"Tag": [{"Key": "a"}, {"Key": "a"}]}, "Duplicate.TagKey"),
        ({"ResourceGroupId": "rg-acfmnobodys"}, "InvalidResourceGroup.NotFound"),
        ({"SnapshotId": "s-bp1"}, "SandboxNotImplemented"),
    ],
)
def test_an_image_that_cannot_be_made_is_refused(cloud, parameters, code):
    with pytest.raises(ServerException, match=code):
        make_image(cloud, **parameters)
    assert cloud.ask("DescribeImages", ImageOwnerAlias="self", Status=ANY_STATUS)["TotalCount"] == 2


def test_an_image_is_of_a_machine_that_runs_and_has_a_name_of_its_own(cloud):
    cloud.host.boots_at_once = False
    (machine,) = run(cloud)
    with pytest.raises(ServerException, match="IncorrectInstanceStatus"):
        make_image(cloud, InstanceId=machine)
    cloud.host.boots_at_once = True
    make_image(cloud, ImageName="mine")
    with pytest.raises(ServerException, match=r"InvalidImageName\.Duplicated"):
        make_image(cloud, ImageName="mine")
    make_image(cloud, ImageName="mine-2")


def test_an_image_takes_a_while_and_no_machine_starts_from_it_before(cloud):
    image = make_image(cloud)
    assert cloud.ask("DescribeImages", ImageId=image)["TotalCount"] == 0
    cloud.now += 1.5
    found = described(cloud, image, Status=ANY_STATUS)
    assert (found["Status"], found["Progress"], found["Size"]) == ("Creating", "50%", 40)
    with pytest.raises(ServerException, match=r"OperationDenied\.ImageNotValid"):
        run(cloud, ImageId=image)
    with pytest.raises(ServerException, match="IncorrectImageStatus"):
        cloud.ask("DeleteImage", ImageId=image, Force=True)
    cloud.now += 1.5
    assert described(cloud, image)["Status"] == "Available"
    with pytest.raises(ServerException, match=r"InvalidSystemDiskSize\.LessThanImageSize"):
        run(cloud, ImageId=image, SystemDisk={"Size": 39})
    (machine,) = run(cloud, ImageId=image)
    assert cloud.host.machines[machine].disk is not None


@pytest.mark.parametrize("image", [IMAGE, BARE_IMAGE_ID, TORCH_IMAGE_ID])
def test_a_machine_of_an_image_has_what_its_source_had(cloud, image):
    (machine,) = run(cloud, ImageId=image)
    for name in ("first", "second"):
        made = make_image(cloud, InstanceId=machine, ImageName=name)
        cloud.now += 3.0
        (machine,) = run(cloud, ImageId=made)
        started = cloud.host.machines[machine]
        assert started.is_bare == (image == BARE_IMAGE_ID)
        # Alibaba Cloud's Ubuntu has no PyTorch; see docs/aliyun.md.
        assert ("torch" in started.packages) == (image != IMAGE)


def test_an_image_whose_machine_is_released_too_early_has_failed(cloud):
    (machine,) = run(cloud)
    image = make_image(cloud, InstanceId=machine)
    cloud.ask("DeleteInstances", InstanceId=[machine], Force=True)
    cloud.now += 3.0
    assert described(cloud, image, Status="CreateFailed")["Status"] == "CreateFailed"


def test_an_image_and_then_its_snapshot_are_deleted_and_only_by_force_while_they_are_used(cloud):
    image = make_image(cloud)
    cloud.now += 3.0
    (machine,) = run(cloud, ImageId=image)
    (disk,) = described(cloud, image)["DiskDeviceMappings"]["DiskDeviceMapping"]
    snapshot = disk["SnapshotId"]
    with pytest.raises(ServerException, match="SnapshotCreatedImage"):
        cloud.ask("DeleteSnapshot", SnapshotId=snapshot, Force=True)
    with pytest.raises(ServerException, match="ImageUsingByInstance"):
        cloud.ask("DeleteImage", ImageId=image)
    cloud.ask("DeleteImage", ImageId=image, Force=True)
    with pytest.raises(ServerException, match=r"InvalidImageId\.NotFound"):
        cloud.ask("DeleteImage", ImageId=image)
    with pytest.raises(ServerException, match="SnapshotCreatedDisk"):
        cloud.ask("DeleteSnapshot", SnapshotId=snapshot)
    cloud.ask("DeleteInstances", InstanceId=[machine], Force=True)
    cloud.ask("DeleteSnapshot", SnapshotId=snapshot)
    with pytest.raises(ServerException, match=r"InvalidSnapshotId\.NotFound"):
        cloud.ask("DeleteSnapshot", SnapshotId=snapshot)


def test_an_image_is_known_in_its_region_only_and_public_ones_stay(cloud):
    image = make_image(cloud)
    cloud.now += 3.0
    for region, named in (("cn-beijing", image), ("cn-hangzhou", IMAGE)):
        with pytest.raises(ServerException, match=r"InvalidImageId\.NotFound"):
            ask(cloud.clients.in_region(region), "DeleteImage", {"ImageId": named})


def test_images_are_found_by_owner_and_tag_and_no_filter_is_left_unheard(cloud):
    image = make_image(cloud, Tag=[{"Key": "a", "Value": "b"}])
    cloud.now += 3.0

    def found(**parameters):
        return [one["ImageId"] for one in cloud.ask("DescribeImages", **parameters)["Images"]["Image"]]

    assert found(ImageOwnerAlias="self") == [BARE_IMAGE_ID, TORCH_IMAGE_ID, image]
    assert found(Tag=[{"Key": "a", "Value": "b"}]) == [image]
    assert found(Tag=[{"Key": "a", "Value": "c"}]) == []
    for parameters, code in (
        ({"ImageOwnerAlias": "me"}, r"InvalidImageOwnerAlias\.ValueNotSupported"),
        ({"Status": "Pending"}, "InvalidParamter"),
        ({"Usage": "none"}, "SandboxNotImplemented"),
    ):
        with pytest.raises(ServerException, match=code):
            found(**parameters)
