"""Machines of the emulated Alibaba Cloud: booted by RunInstances, seen from inside by curl and our clients."""

from __future__ import annotations

import base64
import contextlib
import os
from datetime import datetime, timedelta, timezone

import oss2
import pytest
from aliyunsdkecs.request.v20140526.DeleteInstanceRequest import DeleteInstanceRequest
from aliyunsdkecs.request.v20140526.DescribeInstancesRequest import DescribeInstancesRequest
from aliyunsdkecs.request.v20140526.DescribeSecurityGroupsRequest import DescribeSecurityGroupsRequest
from aliyunsdkecs.request.v20140526.ModifyInstanceMetadataOptionsRequest import (
    ModifyInstanceMetadataOptionsRequest,
)
from aliyunsdkecs.request.v20140526.RunInstancesRequest import RunInstancesRequest
from aliyunsdkecs.request.v20140526.TagResourcesRequest import TagResourcesRequest

from cloudspot.emulation.local_machine_host import emulated
from cloudspot.errors import AuthError
from cloudspot.local.machine_records import PlannedReclaim
from cloudspot.model import Market
from cloudspot_aliyun.clients import AliyunClients
from cloudspot_aliyun.credentials import Credentials, CredentialsSource
from cloudspot_aliyun.errors import ERRORS
from cloudspot_aliyun_sandbox.account import BARE_IMAGE_ID, IMAGE_ID, TORCH_IMAGE_ID
from cloudspot_aliyun_sandbox.cloud import BUCKET, REGION, TRAIN_PYTHON, EmulatedAliyun
from cloudspot_aliyun_sandbox.rolekeys import RoleKeys

pytestmark = pytest.mark.full


enclosed = pytest.mark.enclosed

TOKEN = (
    "T=$(curl -sf -X PUT -H 'X-aliyun-ecs-metadata-token-ttl-seconds: 60' http://100.100.100.200/latest/api/token)\n"
    'get() { curl -sf -H "X-aliyun-ecs-metadata-token: $T" "http://100.100.100.200/latest/meta-data/$1" && echo; }\n'
)


class Keys(CredentialsSource):
    """These and no others."""

    def __init__(self, held: Credentials) -> None:
        self.held = held

    def get(self) -> Credentials:
        return self.held


class Account:
    """The account as its owner sees it."""

    def __init__(self, cloud, host, wait_until):
        self.cloud, self.host, self.wait_until = cloud, host, wait_until
        for name in [name for name in os.environ if name.startswith(("ALIBABA", "ALIYUN", "OSS_", "ECS_"))]:
            del os.environ[name]  # This process is the test's alone.
        os.environ.update(cloud.environment())
        self.clients = AliyunClients()
        key = self.clients.credentials.get()
        self.bucket = bucket_of(key.access_key_id, key.access_key_secret)

    def ask(self, request, **parameters):
        for name, value in parameters.items():
            if value is not None:
                getattr(request, f"set_{name}")(value)
        return self.clients.ask_ecs(request)

    def run(self, script: str, *, count: int = 1, image: str = IMAGE_ID, **parameters) -> list[str]:
        groups = self.ask(DescribeSecurityGroupsRequest())["SecurityGroups"]["SecurityGroup"]
        parameters.setdefault("RamRoleName", "cloudspot-node")
        parameters.setdefault("HostName", "node-0" if count == 1 else "node-[0,1]")
        answer = self.ask(
            RunInstancesRequest(),
            ImageId=image,
            InstanceType="ecs.g7.large",
            SecurityGroupId=groups[0]["SecurityGroupId"],
            VSwitchId=self.vswitch(),
            ZoneId=f"{REGION}-h",
            Amount=count,
            MinAmount=count,
            UserData=base64.b64encode(f"#!/bin/bash\n{script}\n".encode()).decode(),
            HttpEndpoint="enabled",
            HttpTokens="required",
            **parameters,
        )
        return list(answer["InstanceIdSets"]["InstanceIdSet"])

    def vswitch(self) -> str:
        from aliyunsdkcore.request import RpcRequest

        request = RpcRequest("Vpc", "2016-04-28", "DescribeVSwitches")
        request.add_query_param("ZoneId", f"{REGION}-h")
        return self.clients.ask_ecs(request)["VSwitches"]["VSwitch"][0]["VSwitchId"]

    def describe(self, instance_id: str) -> dict | None:
        found = self.ask(DescribeInstancesRequest(), InstanceIds=f'["{instance_id}"]')["Instances"][
            "Instance"
        ]
        return found[0] if found else None

    def wait_for_console(self, instance_id: str, text: str) -> list[str]:
        self.wait_until(lambda: text in self.host.console(instance_id))
        return self.host.console(instance_id).partition("init: ")[0].splitlines()


def bucket_of(key_id: str, secret: str, token: str = "") -> oss2.Bucket:
    auth = oss2.StsAuth(key_id, secret, token, auth_version="v4") if token else oss2.AuthV4(key_id, secret)
    return oss2.Bucket(auth, os.environ["OSS_ENDPOINT"], BUCKET, region=REGION)


@pytest.fixture
def account(tmp_path, wait_until):
    """``with account() as it``: to be entered inside, by a test marked ``enclosed``."""

    @contextlib.contextmanager
    def make(**arguments):
        cloud = EmulatedAliyun()
        with emulated(cloud, tmp_path / "aliyun", is_isolated=True, **arguments) as host:
            yield Account(cloud, host, wait_until)

    return make


@enclosed
def test_machines_know_who_they_are_and_read_tags_that_come_later(account):
    with account() as it:
        script = (
            f"{TOKEN} get instance-id; get hostname; get private-ipv4; hostname; get zone-id; get region-id\n"
            "until get tags/instance/MASTER_ADDR; do sleep 0.05; done; echo up"
        )
        ids = it.run(script, count=2)
        for instance_id in ids:
            it.wait_until(lambda one=instance_id: f"{REGION}\n" in it.host.console(one))
            it.ask(
                ModifyInstanceMetadataOptionsRequest(),
                InstanceId=instance_id,
                HttpEndpoint="enabled",
                HttpTokens="required",
                InstanceMetadataTags="enabled",
            )
        tags = [{"Key": "MASTER_ADDR", "Value": "172.16.0.7"}]
        it.ask(TagResourcesRequest(), ResourceType="instance", ResourceIds=ids, Tags=tags)
        for index, instance_id in enumerate(ids):
            lines = [line for line in it.wait_for_console(instance_id, "up\n") if line]
            (address,) = it.describe(instance_id)["VpcAttributes"]["PrivateIpAddress"]["IpAddress"]
            name = f"node-{index}"
            expected = [instance_id, name, address, name, f"{REGION}-h", REGION, "172.16.0.7", "up"]
            assert lines == expected


@enclosed
def test_curl_without_a_token_is_refused_at_the_real_address(account):
    with account() as it:
        ask = "curl -s -o /dev/null -w '%{http_code}\\n' http://100.100.100.200/latest/"
        refused = (
            f"{ask}api/token -X PUT; {ask}meta-data/; {ask}meta-data/ -H 'X-aliyun-ecs-metadata-token: x'"
        )
        (instance_id,) = it.run(
            f'{refused}; {TOKEN} {ask}meta-data/ -H "X-aliyun-ecs-metadata-token: $T"; echo up'
        )
        assert it.wait_for_console(instance_id, "up\n") == ["400", "403", "401", "200", "up"]


@enclosed
def test_our_clients_take_the_roles_key_from_the_metadata_and_the_api_takes_it_for_what_it_may(account):
    code = (
        "from aliyunsdkcore.acs_exception.exceptions import ServerException\n"
        "from cloudspot_aliyun.api import caller\n"
        "from cloudspot_aliyun.clients import AliyunClients\n"
        "from cloudspot_aliyun.oss import OssStore\n"
        "from aliyunsdkecs.request.v20140526.DescribeInstancesRequest import DescribeInstancesRequest\n"
        "clients = AliyunClients()\n"
        "print(clients.region, clients.credentials.get().access_key_id[:5])\n"
        f"OssStore('oss://{BUCKET}').put('from-a-machine', b'hello')\n"
        "print(caller(clients).arn.rpartition('/')[0])\n"
        "try:\n"
        "    clients.ask_ecs(DescribeInstancesRequest())\n"
        "except ServerException as error:\n"
        "    print(error.get_error_code())\n"
    )
    with account() as it:
        (instance_id,) = it.run(f"python - <<'END'\n{code}END\necho up")
        role = "acs:ram::1234567890123456:assumed-role/cloudspot-node"
        said = it.wait_for_console(instance_id, "up\n")
        assert said == [f"{REGION} STS.N", role, "Forbidden.RAM", "up"]
        assert it.bucket.get_object("from-a-machine").read() == b"hello"
        (bare,) = it.run(
            "python -c 'from cloudspot_aliyun.clients import AliyunClients\n"
            "AliyunClients().credentials.get()' 2>&1 | tail -n 1; echo up",
            RamRoleName=None,
        )
        assert "this machine has no RAM role" in it.wait_for_console(bare, "up\n")[0]


@enclosed
def test_keys_that_have_expired_are_renewed_by_who_holds_them_and_refused_by_each_service(account):
    with account() as it:
        it.cloud.credential_seconds = 5.0
        script = (
            "from cloudspot_aliyun.oss import OssStore\n"
            "import time\n"
            f"store = OssStore('oss://{BUCKET}')\n"
            "for number in range(40):\n"
            "    store.put(f'written/{number:02d}', b'x')\n"
            "    print('wrote', number, flush=True)\n"
            "    time.sleep(0.3)\n"
        )
        (instance_id,) = it.run(f"python - <<'END'\n{script}END\necho up")
        seed = it.host.directory(instance_id).record().guest.facts["role-seed"]
        keys, now = RoleKeys(seed), datetime.now(timezone.utc)
        old = keys.issue(instance_id, expires_at=now - timedelta(seconds=1))
        fresh = keys.issue(instance_id, expires_at=now + timedelta(hours=1))
        for held, token, said in (
            (old, old.token, "credentials have expired"),
            (fresh, "", "does not accept the credentials"),
            (fresh, "x", "does not accept the credentials"),
        ):
            source = Keys(Credentials(held.access_key, held.secret_key, token))
            with pytest.raises(AuthError, match=said), ERRORS.translated("describe"):
                AliyunClients(credentials=source).ask_ecs(DescribeInstancesRequest())
            with pytest.raises(AuthError, match=said), ERRORS.translated("list"):
                bucket_of(held.access_key, held.secret_key, token).list_objects_v2()
        bucket_of(fresh.access_key, fresh.secret_key, fresh.token).list_objects_v2()
        # It has outlived two keys.
        assert it.wait_for_console(instance_id, "up\n")[-2:] == ["wrote 39", "up"]
        writers = {call.access_key for call in it.cloud.faults.calls if call.action == "PutObject"}
        assert len(writers) >= 3


@enclosed
def test_a_spot_machine_reads_its_notice_and_the_api_tells_the_reclaim(account):
    plan = (PlannedReclaim(after_seconds=0.0, notice_seconds=10.0),)
    with account(plan=lambda machine: plan if machine.market is Market.SPOT else ()) as it:
        script = f"{TOKEN} until get instance/spot/termination-time; do sleep 0.05; done; sleep 1000"
        (instance_id,) = it.run(script, SpotStrategy="SpotAsPriceGo")
        before = datetime.now(timezone.utc)
        told = next(line for line in it.wait_for_console(instance_id, "Z\n") if line)
        at = datetime.strptime(told, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
        assert before - timedelta(seconds=1) <= at <= before + timedelta(seconds=60)
        locks = it.describe(instance_id)["OperationLocks"]["LockReason"]
        assert [lock["LockReason"] for lock in locks] == ["Recycling"]
        it.wait_until(lambda: it.describe(instance_id) is None)


@enclosed
def test_who_ends_a_machine_decides_whether_it_is_listed(account):
    with account() as it:
        (itself,) = it.run("shutdown -h now")
        (another,) = it.run("sleep 1000")
        it.ask(DeleteInstanceRequest(), InstanceId=another, Force="true")
        it.wait_until(lambda: it.describe(another) is None)
        # It is there still, and billed, until somebody releases it.
        it.wait_until(lambda: it.describe(itself)["Status"] == "Stopped")
        it.ask(DeleteInstanceRequest(), InstanceId=itself)
        assert it.describe(itself) is None


@enclosed
def test_images_have_what_they_are_said_to_have(account):
    ask = f"for p in python3 {TRAIN_PYTHON}; do $p -c 'import cloudspot; print(1)' 2>&1 | tail -1; done; echo up"
    with account() as it:
        (ready,) = it.run(ask)
        (bare,) = it.run(ask, image=BARE_IMAGE_ID)
        assert it.wait_for_console(ready, "up\n") == ["1", "1", "up"]
        assert "No module named 'cloudspot'" in it.wait_for_console(bare, "up\n")[0]


@enclosed
def test_the_default_image_has_neither_torch_nor_pip_as_alibaba_clouds_ubuntu_has_neither(account):
    ask = (
        "for m in torch pip; do python3 -c \"import $m; print('has', '$m')\" 2>&1 | tail -n 1; done; echo up"
    )
    with account() as it:
        (plain,) = it.run(ask)
        (own,) = it.run(ask, image=TORCH_IMAGE_ID)
        missing = "ModuleNotFoundError: No module named"
        assert it.wait_for_console(plain, "up\n") == [f"{missing} 'torch'", f"{missing} 'pip'", "up"]
        assert it.wait_for_console(own, "up\n") == ["has torch", "has pip", "up"]
