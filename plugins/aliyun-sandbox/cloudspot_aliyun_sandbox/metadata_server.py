"""ECS's metadata service for one emulated machine, as strict as the real service.

Sources: ECS user guide, "Instance metadata" (items, security hardening mode and its errors), "Instance
identities", "Preemptible instances"; API reference of RunInstances and ModifyInstanceMetadataOptions
(checked 2026-11). The text of errors, the lists of directories, and the path of the tags are from memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar

from cloudspot.emulation.cloud import Answer, Request
from cloudspot.emulation.token_metadata import RoleMetadata, Tree, shown_time
from cloudspot_aliyun_sandbox.rolekeys import RoleKeys


class EcsMetadataService(RoleMetadata):
    """One machine's service.

    The machine host supplies ``instance-id``, ``instance-name``, ``instance-type``, ``hostname``,
    ``image-id``, ``mac``, ``private-ipv4``, ``region-id``, ``zone-id``, ``vpc-id``, ``vpc-cidr-block``,
    ``vswitch-id``, ``vswitch-cidr-block``, ``owner-account-id``, ``serial-number``; ``market`` (``spot`` or
    ``on-demand``); ``http-endpoint``, ``http-tokens`` and ``http-put-response-hop-limit`` with the values of
    RunInstances; ``role`` with ``role-seed`` (see ``rolekeys``) and ``credential-seconds``. The service shows
    the machine's tags, which the emulated ECS supplies only if InstanceMetadataTags is enabled.
    """

    versions: ClassVar[tuple[str, ...]] = ("2016-01-01", "latest")
    pass_header: ClassVar[str] = "x-aliyun-ecs-metadata-token"  # noqa: S105 # the name of a header
    bare_status: ClassVar[int] = 403
    titles: ClassVar[Mapping[int, str]] = {
        **RoleMetadata.titles,
        400: "Missing or Invalid Parameters",
    }
    role_keys = RoleKeys
    renewed_before: ClassVar[timedelta] = timedelta(minutes=30)

    def answer(self, request: Request) -> Answer:
        """Answer one request; refuse all requests while the endpoint is disabled."""
        if self.view.facts.get("http-endpoint", "enabled") == "disabled":
            return self.refuse(403)
        return super().answer(request)

    def tree(self) -> Tree:
        """Return the values that the instance can read."""
        return {"dynamic": self._dynamic, "meta-data": self._meta_data}

    def _meta_data(self) -> Tree:
        facts = self.view.facts
        names = (
            "hostname",
            "image-id",
            "instance-id",
            "mac",
            "owner-account-id",
            "private-ipv4",
            "region-id",
            "serial-number",
            "vpc-cidr-block",
            "vpc-id",
            "vswitch-cidr-block",
            "vswitch-id",
            "zone-id",
        )
        tree: dict[str, Any] = {name: str(facts[name]) for name in names if name in facts}
        tree["network-type"] = "vpc"
        tree["dns-conf"] = {"nameservers": "100.100.2.136\n100.100.2.138"}
        tree["ntp-conf"] = {"ntp-servers": "ntp1.aliyun.com"}
        tree["source-address"] = "http://mirrors.cloud.aliyuncs.com"
        instance: dict[str, Any] = {
            "instance-type": str(facts["instance-type"]),
            "virtualization-solution": "ECS Virt",
            "virtualization-solution-version": "2.0",
        }
        if facts.get("instance-name"):
            instance["instance-name"] = str(facts["instance-name"])
        notice = self.view.notice
        if notice is not None and facts.get("market") == "spot":
            is_late = "notice-late" in facts.get("contrary", ())
            at = notice.deadline - timedelta(minutes=4) if is_late else notice.deadline
            instance["spot"] = {"termination-time": shown_time(at)}
        tree["instance"] = instance
        card = {
            "network-interface-id": f"eni-{str(facts['instance-id']).partition('-')[2]}",
            "primary-ip-address": tree["private-ipv4"],
            "private-ipv4s": json.dumps([tree["private-ipv4"]]),
            **{name: tree[name] for name in names if name.startswith(("vpc-", "vswitch-")) and name in tree},
        }
        tree["network"] = {"interfaces": {"macs": {str(facts["mac"]): card}}}
        if facts.get("role"):
            tree["ram"] = {"security-credentials": {str(facts["role"]): self._role_credentials()}}
        tags = self.view.tags
        if tags:
            tree["tags"] = {"instance": tags}
        return tree

    def _role_credentials(self) -> str:
        held = self.credentials.current()
        return json.dumps(
            {
                "AccessKeyId": held.access_key,
                "AccessKeySecret": held.secret_key,
                "Expiration": shown_time(held.expires_at),
                "SecurityToken": held.token,
                "LastUpdated": shown_time(self.credentials.updated_at),
                "Code": "Success",
            },
            indent=2,
        )

    def _dynamic(self) -> Tree:
        facts = self.view.facts
        names = (
            "zone-id",
            "serial-number",
            "instance-id",
            "region-id",
            "private-ipv4",
            "owner-account-id",
            "mac",
            "image-id",
            "instance-type",
        )
        document = {name: str(facts[name]) for name in names if name in facts}
        return {"instance-identity": {"document": json.dumps(document)}}
