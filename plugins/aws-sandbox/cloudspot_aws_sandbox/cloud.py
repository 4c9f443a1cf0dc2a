"""The whole emulated AWS, which ``cloudspot sandbox aws`` and the tests of whole jobs start."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from cloudspot.emulation.cloud import Contrary, EmulatedMachine, MachineHost
from cloudspot.emulation.emulated_account import EmulatedAccount, common_contraries
from cloudspot_aws import permissions
from cloudspot_aws.accountsetup import LIMIT_ROLE
from cloudspot_aws.drill import ROLE as DRILL_ROLE
from cloudspot_aws.options import DEFAULT_INSTANCE_PROFILE, DEFAULT_TRAIN_PYTHON
from cloudspot_aws_sandbox.rights import resource_of, rights_of
from cloudspot_aws_sandbox.rolecheck import RoleCheck
from cloudspot_aws_sandbox.rolekeys import RoleKeys

if TYPE_CHECKING:
    from cloudspot_aws_sandbox.functions import StrictFunctions
    from cloudspot_aws_sandbox.identities import Identities
    from cloudspot_aws_sandbox.strict_ec2 import StrictEc2
    from cloudspot_aws_sandbox.strict_s3 import StrictS3

# If this were not set, moto would read 1,300 images for each region.
os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"

REGION: Final = "us-east-1"
BUCKET: Final = "cloudspot-sandbox"
NODE_ROLE: Final = "cloudspot-node"


class EmulatedAws(EmulatedAccount):
    """One account with a bucket, an instance profile for nodes, and every service that a job uses.

    S3, EC2 and CloudWatch Logs are stricter than moto's; the other services are moto's own. All services have
    one address.
    """

    name: ClassVar[str] = "aws"
    notice_seconds: ClassVar[float] = 120.0
    foreign_variables: ClassVar[tuple[str, ...]] = ("AWS_", "BOTO_")
    can_be_bare: ClassVar[bool] = True
    contraries: ClassVar[Mapping[str, Contrary]] = {
        **common_contraries("aws"),
        "creates-twice": Contrary(
            "S3 passes over If-None-Match, and creates an object that is there", "aws-create-once"
        ),
        "disk-without-price": Contrary("the price list has no volumes", "aws-price-of-disks"),
        "notice-without-time": Contrary("spot/instance-action has no time", "aws-notice"),
        "profile-unknown": Contrary(
            "for a minute after the first launch, EC2 does not know the instance profile", "aws-new-profile"
        ),
        "same-launch-index": Contrary(
            "all machines of a request have the launch index 0", "aws-launch-index"
        ),
        "shutdown-stops": Contrary(
            "a machine that shuts itself down is stopped, and not terminated", "aws-shutdown"
        ),
        "tags-late": Contrary("a tag that is set on a machine shows an hour later", "aws-metadata-tags"),
        "token-forgotten": Contrary("a client token is forgotten after 10 seconds", "aws-client-token"),
    }
    network: ClassVar[str] = "172.31.0.0/16"
    metadata_service: ClassVar[str] = "cloudspot_aws_sandbox.imds_server:Imds"
    # The same address as that of cloud-init's Ec2 data source.
    fetch_user_data: ClassVar[str] = """\
token=$(curl -sf -X PUT -H "X-aws-ec2-metadata-token-ttl-seconds: 60" "$METADATA_URL/latest/api/token") &&
exec curl -sf -H "X-aws-ec2-metadata-token: $token" "$METADATA_URL/latest/user-data"
"""

    def __init__(self) -> None:
        super().__init__()
        self._access_key = "AKIA" + secrets.token_hex(8).upper()
        self._secret_key = secrets.token_urlsafe(30)
        self._keys = RoleKeys(secrets.token_hex(16))
        self.faults.is_machine = self._keys.is_role_key
        self._host: MachineHost | None = None
        self._ec2: StrictEc2 | None = None
        self._functions: StrictFunctions | None = None
        self._identities: Identities | None = None
        self.s3: StrictS3 | None = None
        """The account's buckets, which tests may modify."""

    def start(self, host: MachineHost, *, address: str, directory: Path) -> None:
        """Serve the account, and keep its trail in ``requests.jsonl``; see EmulatedCloud."""
        from moto.awslambda.models import lambda_backends
        from moto.core import DEFAULT_ACCOUNT_ID
        from moto.ec2.models.vpcs import VPCBackend
        from moto.events.models import events_backends
        from moto.iam.models import iam_backends
        from moto.logs.models import logs_backends
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from moto.s3.models import s3_backends

        from cloudspot_aws_sandbox.functions import StrictFunctions
        from cloudspot_aws_sandbox.identities import Identities
        from cloudspot_aws_sandbox.strict_ec2 import StrictEc2
        from cloudspot_aws_sandbox.strict_logs import StrictLogs
        from cloudspot_aws_sandbox.strict_s3 import StrictS3

        # The process may have served an account before, on another host.
        make_vpc = getattr(VPCBackend.create_vpc, "__wrapped__", VPCBackend.create_vpc)

        @wraps(make_vpc)
        def make_vpc_here(backend: Any, cidr_block: str, *rest: Any, **more: Any) -> Any:
            """Give the default VPC the network in which this host's machines are."""
            return make_vpc(backend, host.network if more.get("is_default") else cidr_block, *rest, **more)

        VPCBackend.create_vpc = make_vpc_here
        # moto's accounts belong to the process, and a test's process may have served one before.
        for backends in (iam_backends, lambda_backends, events_backends, logs_backends, s3_backends):
            backends[DEFAULT_ACCOUNT_ID].reset()
        keys = self._keys
        self._host = host
        moto = DomainDispatcherApplication(create_backend_app)
        owner = {self._access_key: self._secret_key}
        self._identities = known = Identities(owner, keys, machines_role=NODE_ROLE)
        self._functions = functions = StrictFunctions(
            moto,
            faults=self.faults,
            secrets=known,
            is_granted=known.may,
            environment=self._function_environment,
            directory=directory,
        )
        logs = StrictLogs(functions, faults=self.faults, secrets=known, is_granted=known.may)
        self.s3 = s3 = StrictS3(logs, faults=self.faults, secrets=known, is_granted=known.may)
        self._ec2 = StrictEc2(s3, host, secrets=known, faults=self.faults, is_granted=known.may)
        self.serve(RoleCheck(self._ec2, keys, now=_now), address=address)
        if not self.is_bare:
            self._make_resources()
        self.begin(directory, rights=rights_of, resource=partial(resource_of, account=DEFAULT_ACCOUNT_ID))

    def environment(self) -> Mapping[str, str]:
        """Return the variables with which the account's owner reaches it; see EmulatedCloud."""
        store = {} if self.is_bare else {"CLOUDSPOT_STORE": f"s3://{BUCKET}"}
        return {
            **self.machine_environment(),
            "AWS_ACCESS_KEY_ID": self._access_key,
            "AWS_SECRET_ACCESS_KEY": self._secret_key,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_PAGER": "",
            **store,
        }

    def machine_environment(self) -> Mapping[str, str]:
        """Return the endpoint's variables, which every image contains; see EmulatedCloud."""
        return {"AWS_ENDPOINT_URL": self.url}

    def metadata_environment(self, url: str) -> Mapping[str, str]:
        """Return the variable with the metadata service's address for AWS's SDKs."""
        return {"AWS_EC2_METADATA_SERVICE_ENDPOINT": url}

    def close_functions(self) -> None:
        """End all functions; see EmulatedAccount."""
        assert self._functions is not None
        self._functions.close()

    def tick(self) -> None:
        """Carry out the schedules, and announce reclaims of spot machines; see EmulatedAccount."""
        assert self._ec2 is not None
        assert self._functions is not None
        assert self._host is not None
        self._ec2.run_schedules()
        self._functions.run_due(REGION)
        for machine_id in self.newly_noticed(self._host):
            detail = {"instance-id": machine_id, "instance-action": "terminate"}
            self._functions.publish("EC2 Spot Instance Interruption Warning", detail, REGION)

    def _function_environment(self, role: str) -> Mapping[str, str]:
        """Return the credentials of a function's role, and the services' addresses."""
        issued = self._keys.issue(f"function/{role}", expires_at=_now() + timedelta(hours=6))
        assert self._identities is not None
        self._identities.function_roles[issued.access_key] = role
        return {
            "AWS_ENDPOINT_URL": self.functions_url,
            "AWS_ACCESS_KEY_ID": issued.access_key,
            "AWS_SECRET_ACCESS_KEY": issued.secret_key,
            "AWS_SESSION_TOKEN": issued.token,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
        }

    def furnish(self, machine: EmulatedMachine) -> EmulatedMachine:
        """Add the role and its keys to the metadata, and the programs of AWS's images; see EmulatedCloud."""
        facts = {**machine.metadata, "role-seed": self._keys.seed, "contrary": sorted(self.contrary)}
        role = _role_of(str(machine.metadata.get("instance-profile", "")))
        if role is not None:
            facts["role"] = role
        programs = {DEFAULT_TRAIN_PYTHON: sys.executable}
        return msgspec.structs.replace(machine, metadata=facts, programs=programs)

    def _make_resources(self) -> None:
        """Make the bucket, the roles and the nodes' profile, as `cloudspot setup` does.

        Machines may use any bucket here, because a job's inputs may be in other buckets.
        """
        import boto3

        # These calls use the API, as a user would, but do not count as a job's.
        environment = self.environment()
        session = boto3.Session(self._access_key, self._secret_key, region_name=REGION)
        endpoint = environment["AWS_ENDPOINT_URL"]
        session.client("s3", endpoint_url=endpoint).create_bucket(Bucket=BUCKET)
        iam = session.client("iam", endpoint_url=endpoint)
        for role, file in ((NODE_ROLE, "node"), (DRILL_ROLE, "drill"), (LIMIT_ROLE, "limit")):
            trust = json.dumps(permissions.trust(file, partition="aws"))
            policy = json.dumps(permissions.policy(file, partition="aws", bucket="*"))
            iam.create_role(RoleName=role, AssumeRolePolicyDocument=trust)
            iam.put_role_policy(RoleName=role, PolicyName=role, PolicyDocument=policy)
        iam.create_instance_profile(InstanceProfileName=DEFAULT_INSTANCE_PROFILE)
        iam.add_role_to_instance_profile(InstanceProfileName=DEFAULT_INSTANCE_PROFILE, RoleName=NODE_ROLE)


def _role_of(profile: str) -> str | None:
    """Return the name of the instance profile's role, or None if the profile or the role does not exist."""
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.iam.models import iam_backends

    for known in iam_backends[DEFAULT_ACCOUNT_ID]["aws"].instance_profiles.values():
        if known.name == profile and known.roles:
            return str(known.roles[0].name)
    return None


def _now() -> datetime:
    return datetime.now(timezone.utc)
