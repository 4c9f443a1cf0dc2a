"""The emulated Alibaba Cloud's account after a job, by its own SDKs; and what must be true of it."""

from __future__ import annotations

import json
import os
import re

from support.clouds.sandboxed import Seen, check_streams, granted_by, not_granted, rights_taken

from cloudspot_aliyun import permissions

BUCKET = "cloudspot-sandbox"
SETS = ()
FILE = re.compile(r"logs/(i-[a-z0-9]+)/\d{4}-\d\d-\d\d/(.+)\.(\d+-\d+)\.(\d{12})\.log")
LINE = re.compile(r"\S+Z (\d+) \S+: (.*)")


def look():
    """Return what the account's owner sees; inside."""
    import oss2
    from aliyunsdkcore.client import AcsClient
    from aliyunsdkecs.request.v20140526.DescribeDeploymentSetsRequest import DescribeDeploymentSetsRequest
    from aliyunsdkecs.request.v20140526.DescribeInstancesRequest import DescribeInstancesRequest

    names = ("ALIBABA_CLOUD_ACCESS_KEY_ID", "ALIBABA_CLOUD_ACCESS_KEY_SECRET", "ALIBABA_CLOUD_REGION_ID")
    key, secret, region = (os.environ[name] for name in names)
    host, _, port = os.environ["ECS_ENDPOINT"].removeprefix("http://").partition(":")
    ecs = AcsClient(key, secret, region, port=int(port))
    ecs.add_endpoint(region, "Ecs", host)

    def ask(request):
        request.set_protocol_type("http")
        return json.loads(ecs.do_action_with_exception(request))

    bucket = oss2.Bucket(oss2.AuthV4(key, secret), os.environ["OSS_ENDPOINT"], BUCKET, region=region)
    keys = [one.key for one in oss2.ObjectIteratorV2(bucket)]
    return {
        "instances": ask(DescribeInstancesRequest())["Instances"]["Instance"],
        "sets": ask(DescribeDeploymentSetsRequest())["DeploymentSets"]["DeploymentSet"],
        "keys": keys,
        "files": {name: bucket.get_object(name).read().decode() for name in keys if name.startswith("logs/")},
    }


def check(seen: Seen) -> None:
    """Nothing that costs is left, each machine's log is in OSS, and no request took more than is granted."""
    account = seen.account
    assert (account["instances"], account["sets"]) == ([], [])
    assert {"agents", "code", "index", "jobs", "logs", "market", "recent"} == {
        key.partition("/")[0] for key in account["keys"]
    }
    check_log(seen)
    # Each machine releases itself when its agent has ended: ECS keeps, and bills, who only shuts down.
    ended = [one for one in seen.trail if one["by"] == "machine" and one["action"] == "DeleteInstance"]
    assert [one["error"] for one in ended] == [None] * len(seen.machines)
    for by, policy in (("user", "policy-submitter.json"), ("machine", "policy-node.json")):
        text = (permissions.DIRECTORY / policy).read_text().replace("BUCKET", BUCKET)
        taken = rights_taken(seen.trail, by)
        assert not_granted(taken, granted_by(json.loads(text)["Statement"])) == []
        # The comparison can fail: each of these was taken, and is missed when it is taken away.
        rights = {right for right, _ in taken}
        assert {"oss:PutObject", "oss:GetObject", "oss:ListObjects"} <= rights
        assert ("ecs:RunInstances" in rights) == (by == "user")


def check_log(seen: Seen) -> None:
    """The lines lie by machine and day, as people look for them."""
    streams: dict[str, list[dict]] = {}
    machines = set()
    for name in sorted(seen.account["files"]):
        found = FILE.fullmatch(name)
        assert found is not None, name
        machine, job, stream, first = found.groups()
        assert job == seen.show["id"]
        machines.add(machine)
        lines = [
            match for line in seen.account["files"][name].splitlines() if (match := LINE.fullmatch(line))
        ]
        assert int(lines[0][1]) == int(first)
        streams.setdefault(stream, []).extend({"seq": int(line[1]), "text": line[2]} for line in lines)
    assert (sorted(streams), len(machines)) == (seen.machines, len(seen.machines))
    check_streams(streams, seen.show)
