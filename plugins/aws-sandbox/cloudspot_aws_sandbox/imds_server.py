"""EC2's instance metadata service for one emulated machine, as strict as the real service.

Sources: EC2 user guide, "Use the Instance Metadata Service to access instance metadata", "Instance metadata
categories", "Spot Instance interruption notices", "EC2 instance rebalance recommendations", "View tags for
your EC2 instances using instance metadata" (checked 2026-11). From memory: a directory is listed even if it
is requested without its trailing slash.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, ClassVar, Final

from cloudspot.emulation.token_metadata import RoleMetadata, Tree, shown_time
from cloudspot_aws_sandbox.rolekeys import RoleKeys

VERSIONS: Final = (
    "1.0",
    "2007-01-19",
    "2007-03-01",
    "2007-08-29",
    "2007-10-10",
    "2007-12-15",
    "2008-02-01",
    "2008-09-01",
    "2009-04-04",
    "2011-01-01",
    "2011-05-01",
    "2012-01-12",
    "2014-02-25",
    "2014-11-05",
    "2015-10-20",
    "2016-04-19",
    "2016-06-30",
    "2016-09-02",
    "2018-03-28",
    "2018-08-17",
    "2018-09-24",
    "2019-10-01",
    "2020-10-27",
    "2021-01-03",
    "2021-03-23",
    "2021-07-15",
    "2022-09-24",
    "2024-04-11",
    "latest",
)


class Imds(RoleMetadata):
    """One machine's service; :mod:`cloudspot_aws_sandbox.machines` supplies its data about the instance.

    The service also reads three other entries: ``role`` (the profile's role), ``role-seed`` (see
    :mod:`cloudspot_aws_sandbox.rolekeys`), and ``credential-seconds``.
    """

    server_version: ClassVar[str] = "EC2ws"
    versions: ClassVar[tuple[str, ...]] = VERSIONS
    pass_header: ClassVar[str] = "x-aws-ec2-metadata-token"  # noqa: S105 # the name of a header
    token_prefix: ClassVar[str] = "AQAEA"  # noqa: S105 # the prefix of such tokens
    role_keys = RoleKeys
    renewed_before: ClassVar[timedelta] = timedelta(minutes=5)

    def tree(self) -> Tree:
        """Return the values that the instance can read."""
        return {"dynamic": self._dynamic, "meta-data": self._meta_data}

    def _meta_data(self) -> Tree:
        facts = self.view.facts
        names = (
            "ami-id",
            "ami-launch-index",
            "hostname",
            "instance-id",
            "instance-life-cycle",
            "instance-type",
            "local-ipv4",
            "mac",
            "reservation-id",
        )
        tree: dict[str, Any] = {name: str(facts[name]) for name in names if name in facts}
        tree["ami-manifest-path"] = "(unknown)"
        tree["instance-action"] = "none"
        tree["profile"] = "default-hvm"
        tree["local-hostname"] = tree["hostname"]
        tree["security-groups"] = "\n".join(facts.get("security-groups", ()))
        tree["placement"] = {"availability-zone": facts["availability-zone"], "region": facts["region"]}
        tree["services"] = {"domain": "amazonaws.com", "partition": "aws"}
        tree["network"] = {
            "interfaces": {
                "macs": {
                    facts["mac"]: {
                        "device-number": "0",
                        "local-hostname": tree["hostname"],
                        "local-ipv4s": tree["local-ipv4"],
                        "mac": facts["mac"],
                        "owner-id": facts["account"],
                        "subnet-id": facts["subnet-id"],
                    }
                }
            }
        }
        tree["events"] = {"maintenance": {"history": "[]", "scheduled": "[]"}}
        if facts.get("instance-metadata-tags") == "enabled":
            tree["tags"] = {"instance": self.view.tags}
        if facts.get("instance-profile"):
            tree["iam"] = self._iam()
        notice = self.view.notice
        if notice is not None and facts.get("instance-life-cycle") == "spot":
            at = shown_time(notice.deadline)
            is_timeless = "notice-without-time" in facts.get("contrary", ())
            notice_fields = {"action": notice.action} | ({} if is_timeless else {"time": at})
            tree["spot"] = {"instance-action": json.dumps(notice_fields)}
            if notice.action == "terminate" and not is_timeless:
                tree["spot"]["termination-time"] = at
            tree["events"]["recommendations"] = {
                "rebalance": json.dumps({"noticeTime": shown_time(notice.given_at)})
            }
        return tree

    def _iam(self) -> Tree:
        facts = self.view.facts
        profile = facts["instance-profile"]
        info = {
            "Code": "Success",
            "LastUpdated": shown_time(self.credentials.updated_at),
            "InstanceProfileArn": f"arn:aws:iam::{facts['account']}:instance-profile/{profile}",
            "InstanceProfileId": "AIPAEMULATEDPROFILE00",
        }
        tree: dict[str, Any] = {"info": json.dumps(info, indent=2)}
        role = facts.get("role")
        if role:
            tree["security-credentials"] = {role: self._role_credentials()}
        return tree

    def _role_credentials(self) -> str:
        held = self.credentials.current()
        return json.dumps(
            {
                "Code": "Success",
                "LastUpdated": shown_time(self.credentials.updated_at),
                "Type": "AWS-HMAC",
                "AccessKeyId": held.access_key,
                "SecretAccessKey": held.secret_key,
                "Token": held.token,
                "Expiration": shown_time(held.expires_at),
            },
            indent=2,
        )

    def _dynamic(self) -> Tree:
        facts = self.view.facts
        document = {
            "accountId": facts["account"],
            "architecture": "x86_64",
            "availabilityZone": facts["availability-zone"],
            "billingProducts": None,
            "devpayProductCodes": None,
            "imageId": facts["ami-id"],
            "instanceId": facts["instance-id"],
            "instanceType": facts["instance-type"],
            "kernelId": None,
            "marketplaceProductCodes": None,
            "pendingTime": shown_time(self.credentials.updated_at),
            "privateIp": facts["local-ipv4"],
            "ramdiskId": None,
            "region": facts["region"],
            "version": "2017-09-30",
        }
        return {"instance-identity": {"document": json.dumps(document, indent=2)}}
