"""Machines of the emulated AWS: booted by RunInstances, seen from inside by curl and boto3 as they come."""

from __future__ import annotations

import contextlib
import json
import os
from datetime import datetime, timedelta, timezone

import boto3
import pytest

from cloudspot.emulation.local_machine_host import emulated
from cloudspot.local.machine_records import PlannedReclaim
from cloudspot.model import EndReason, InstanceState, Market
from cloudspot_aws import permissions
from cloudspot_aws_sandbox.cloud import BUCKET, NODE_ROLE, EmulatedAws
from cloudspot_aws_sandbox.images import BARE_IMAGE_ID, IMAGE_ID

pytestmark = pytest.mark.full


enclosed = pytest.mark.enclosed

TOKEN = (
    "T=$(curl -sf -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' http://169.254.169.254/latest/api/token)\n"
    'imds() { curl -sf -H "X-aws-ec2-metadata-token: $T" "http://169.254.169.254/latest/meta-data/$1" && echo; }\n'
)


class Account:
    """The account as its owner sees it."""

    def __init__(self, cloud, host, wait_until):
        self.cloud, self.host, self.wait_until = cloud, host, wait_until
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            del os.environ[name]  # This process is the test's alone.
        os.environ.update(cloud.environment())
        boto3.setup_default_session()  # one that another test has made keeps its credentials
        self.ec2 = boto3.client("ec2")
        self.s3 = boto3.client("s3")

    def run(self, script: str, *, count: int = 1, image: str = IMAGE_ID, **arguments) -> list[str]:
        arguments.setdefault("IamInstanceProfile", {"Name": "cloudspot-node"})
        answer = self.ec2.run_instances(
            ImageId=image,
            InstanceType="g5.xlarge",
            MinCount=count,
            MaxCount=count,
            UserData=f"#!/bin/bash\n{script}\n",
            MetadataOptions={"HttpTokens": "required", "InstanceMetadataTags": "enabled"},
            **arguments,
        )
        return [one["InstanceId"] for one in answer["Instances"]]

    def describe(self, instance_id: str) -> dict:
        found = self.ec2.describe_instances(InstanceIds=[instance_id])
        return found["Reservations"][0]["Instances"][0]

    def wait_for_console(self, instance_id: str, text: str) -> list[str]:
        self.wait_until(lambda: text in self.host.console(instance_id))
        return self.host.console(instance_id).partition("init: ")[0].splitlines()

    def wait_for_end(self, instance_id: str) -> dict:
        self.wait_until(lambda: self.describe(instance_id)["State"]["Name"] == "terminated")
        return self.describe(instance_id)


@pytest.fixture
def account(tmp_path, wait_until):
    """``with account() as it``: to be entered inside, by a test marked ``enclosed``."""

    @contextlib.contextmanager
    def make(**arguments):
        cloud = EmulatedAws()
        with emulated(cloud, tmp_path / "aws", is_isolated=True, **arguments) as host:
            yield Account(cloud, host, wait_until)

    return make


@enclosed
def test_machines_know_who_they_are_and_read_tags_that_come_later(account):
    with account() as it:
        script = (
            f"{TOKEN} imds instance-id; imds ami-launch-index; imds local-ipv4; hostname; imds placement/region\n"
            "until imds tags/instance/MASTER_ADDR; do sleep 0.05; done; echo up"
        )
        ids = it.run(script, count=2)
        for instance_id in ids:
            it.wait_until(lambda one=instance_id: "us-east-1" in it.host.console(one))
        it.ec2.create_tags(Resources=ids, Tags=[{"Key": "MASTER_ADDR", "Value": "172.31.0.7"}])
        for index, instance_id in enumerate(ids):
            lines = [line for line in it.wait_for_console(instance_id, "up\n") if line]
            address = it.describe(instance_id)["PrivateIpAddress"]
            name = f"ip-{address.replace('.', '-')}"
            assert lines == [instance_id, str(index), address, name, "us-east-1", "172.31.0.7", "up"]


@enclosed
def test_curl_without_a_token_is_refused_at_the_real_address(account):
    with account() as it:
        ask = "curl -s -o /dev/null -w '%{http_code}\\n' http://169.254.169.254/latest/"
        refused = f"{ask}api/token -X PUT; {ask}meta-data/; {ask}meta-data/ -H 'X-aws-ec2-metadata-token: x'"
        (instance_id,) = it.run(
            f'{refused}; {TOKEN} {ask}meta-data/ -H "X-aws-ec2-metadata-token: $T"; echo up'
        )
        assert it.wait_for_console(instance_id, "up\n") == ["400", "401", "401", "200", "up"]


def give_role(*rights: str) -> None:
    """Let the machines' role do this, and nothing else but use the bucket."""
    statement = {"Effect": "Allow", "Action": rights, "Resource": "*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    boto3.client("iam").put_role_policy(RoleName=NODE_ROLE, PolicyName="given", PolicyDocument=document)


@enclosed
def test_a_machine_may_do_no_more_than_its_roles_policies_say(account):
    code = (
        "import boto3\n"
        "ec2 = boto3.client('ec2')\n"
        "print(len(ec2.describe_instances()['Reservations']))\n"
        "try: ec2.terminate_instances(InstanceIds=['i-0123456789abcdef0'])\n"
        "except Exception as error: print(error.response['Error']['Code'])\n"
    )
    with account() as it:
        give_role("ec2:DescribeInstances")
        (instance_id,) = it.run(f"export AWS_DEFAULT_REGION=us-east-1; python - <<'END'\n{code}END\necho up")
        assert it.wait_for_console(instance_id, "up\n") == ["1", "UnauthorizedOperation", "up"]


@enclosed
def test_boto3_takes_the_roles_credentials_from_the_metadata_and_the_api_takes_them(account):
    code = (
        "import boto3\n"
        "session = boto3.Session(region_name='us-east-1')\n"
        "print(session.get_credentials().method)\n"
        f"session.client('s3').put_object(Bucket='{BUCKET}', Key='from-a-machine', Body=b'hello')\n"
        "print(session.client('ec2').describe_instances()['Reservations'][0]['Instances'][0]['InstanceId'])\n"
    )
    with account() as it:
        give_role("ec2:DescribeInstances")
        (instance_id,) = it.run(f"python - <<'END'\n{code}END\necho up")
        assert it.wait_for_console(instance_id, "up\n") == ["iam-role", instance_id, "up"]
        assert it.s3.get_object(Bucket=BUCKET, Key="from-a-machine")["Body"].read() == b"hello"
        bare = it.run(
            "python - <<'END'\nimport boto3\nprint(boto3.Session().get_credentials())\nEND\necho up",
            IamInstanceProfile={},
        )
        assert it.wait_for_console(bare[0], "up\n") == ["None", "up"]


@enclosed
def test_a_machine_writes_to_the_log_groups_that_its_roles_policy_has(account):
    from botocore.exceptions import ClientError

    from cloudspot_aws_sandbox.rolekeys import RoleKeys

    with account() as it:
        (instance_id,) = it.run("sleep 1000")
        seed = it.host.directory(instance_id).record().guest.facts["role-seed"]
        keys = RoleKeys(seed).issue(instance_id, expires_at=datetime.now(timezone.utc) + timedelta(hours=1))
        logs = boto3.client(
            "logs",
            aws_access_key_id=keys.access_key,
            aws_secret_access_key=keys.secret_key,
            aws_session_token=keys.token,
        )
        logs.create_log_group(logGroupName="/cloudspot/digits")
        with pytest.raises(ClientError, match="not authorized to perform: logs:CreateLogGroup"):
            logs.create_log_group(logGroupName="/teams/vision")
        policy = json.loads((permissions.DIRECTORY / "policy-node.json").read_text())
        (statement,) = [one for one in policy["Statement"] if one["Sid"] == "Logs"]
        statement["Resource"] = [statement["Resource"], "arn:*:logs:*:*:log-group:/teams/vision*"]
        iam = boto3.client("iam")
        made = iam.create_policy(PolicyName="cloudspot-node", PolicyDocument=json.dumps(policy))["Policy"]
        iam.attach_role_policy(RoleName="cloudspot-node", PolicyArn=made["Arn"])
        logs.create_log_group(logGroupName="/teams/vision")
        logs.create_log_stream(logGroupName="/teams/vision", logStreamName="digits/1-0")
        with pytest.raises(ClientError, match="not authorized to perform: logs:DeleteLogStream"):
            logs.delete_log_stream(logGroupName="/teams/vision", logStreamName="digits/1-0")


@enclosed
def test_credentials_that_have_expired_are_refused_by_each_service_in_its_own_words(account):

    from botocore.exceptions import ClientError

    with account() as it:
        give_role("ec2:DescribeInstances", "logs:CreateLogGroup", "s3:ListAllMyBuckets")
        (instance_id,) = it.run("sleep 1000")
        seed = it.host.directory(instance_id).record().guest.facts["role-seed"]
        from cloudspot_aws_sandbox.rolekeys import RoleKeys

        past = datetime.now(timezone.utc) - timedelta(seconds=1)
        old = RoleKeys(seed).issue(instance_id, expires_at=past)
        fresh = RoleKeys(seed).issue(instance_id, expires_at=past + timedelta(hours=1))
        calls = {
            "s3": ("list_buckets", "ExpiredToken", "InvalidToken"),
            "ec2": ("describe_instances", "RequestExpired", "AuthFailure"),
            "logs": ("create_log_group", "ExpiredTokenException", "UnrecognizedClientException"),
            "sts": ("get_caller_identity", "ExpiredToken", "InvalidClientTokenId"),
        }
        for service, (call, expired, invalid) in calls.items():
            arguments = {"logGroupName": "/cloudspot/digits"} if service == "logs" else {}
            for keys, token, code in (
                (old, old.token, expired),
                (fresh, None, invalid),
                (fresh, "x", invalid),
            ):
                client = boto3.client(
                    service,
                    aws_access_key_id=keys.access_key,
                    aws_secret_access_key=keys.secret_key,
                    aws_session_token=token,
                )
                with pytest.raises(ClientError) as caught:
                    getattr(client, call)(**arguments)
                assert caught.value.response["Error"]["Code"] == code, service
            good = boto3.client(
                service,
                aws_access_key_id=fresh.access_key,
                aws_secret_access_key=fresh.secret_key,
                aws_session_token=fresh.token,
            )
            getattr(good, call)(**arguments)


@enclosed
def test_the_limit_outside_ends_a_machine_that_hangs_while_nobody_asks_for_anything(account):
    with account() as it:
        (instance_id,) = it.run("trap '' TERM; sleep 1000")
        due = datetime.now(timezone.utc) + timedelta(seconds=1)
        boto3.client("scheduler").create_schedule(
            Name=f"cloudspot-{instance_id}",
            ScheduleExpression=f"at({due:%Y-%m-%dT%H:%M:%S})",
            FlexibleTimeWindow={"Mode": "OFF"},
            ActionAfterCompletion="DELETE",
            Target={
                "Arn": "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances",
                "RoleArn": "arn:aws:iam::123456789012:role/cloudspot-limit",
                "Input": json.dumps({"InstanceIds": [instance_id]}),
            },
        )
        it.wait_until(lambda: it.host.states()[instance_id].state is InstanceState.ENDED)
        assert it.host.states()[instance_id].end_reason is EndReason.TERMINATED
        assert boto3.client("scheduler").list_schedules()["Schedules"] == []


@enclosed
def test_a_spot_machine_reads_its_notice_and_the_api_tells_the_reclaim(account):
    plan = (PlannedReclaim(after_seconds=0.0, notice_seconds=10.0),)
    with account(plan=lambda machine: plan if machine.market is Market.SPOT else ()) as it:
        script = f"{TOKEN} until imds spot/instance-action | grep action; do sleep 0.05; done; sleep 1000"
        (instance_id,) = it.run(script, InstanceMarketOptions={"MarketType": "spot"})
        notice = json.loads(next(line for line in it.wait_for_console(instance_id, "}") if line))
        assert notice["action"] == "terminate"
        ended = it.wait_for_end(instance_id)
        assert ended["StateReason"]["Code"] == "Server.SpotInstanceTermination"


@enclosed
def test_the_api_tells_who_ended_a_machine(account):
    with account() as it:
        (itself,) = it.run("shutdown -h now", InstanceInitiatedShutdownBehavior="terminate")
        (another,) = it.run("sleep 1000")
        it.ec2.terminate_instances(InstanceIds=[another])
        assert it.wait_for_end(itself)["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"
        assert it.wait_for_end(another)["StateReason"]["Code"] == "Client.UserInitiatedShutdown"


@enclosed
def test_images_have_what_they_are_said_to_have(account):
    ask = "for p in python3 /opt/pytorch/bin/python; do $p -c 'import cloudspot; print(1)' 2>&1 | tail -1; done; echo up"
    with account() as it:
        (ready,) = it.run(ask)
        (bare,) = it.run(ask, image=BARE_IMAGE_ID)
        assert it.wait_for_console(ready, "up\n") == ["1", "1", "up"]
        assert "No module named 'cloudspot'" in it.wait_for_console(bare, "up\n")[0]
