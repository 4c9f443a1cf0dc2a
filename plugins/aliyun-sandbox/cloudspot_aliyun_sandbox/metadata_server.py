"""ECS's metadata service of one emulated machine, as strict as the real one.

Sources: ECS user guide, "Instance metadata" (items, security hardening mode and its errors), "Instance
identities", "Preemptible instances"; API reference of RunInstances and ModifyInstanceMetadataOptions
(checked 2026-11). From memory: the pages of its errors, what its directories list, the path of the tags.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar, Final

from cloudspot.emulation.cloud import Answer, MachineView, Request
from cloudspot.emulation.role_credentials import ShownCredentials
from cloudspot.emulation.token_metadata import TokenedMetadata, Tree, shown_time
from cloudspot_aliyun_sandbox.rolekeys import RoleKeys

RENEWED_BEFORE: Final = timedelta(minutes=30)
"""How long before the old credentials expire new ones appear."""


class EcsMetadataService(TokenedMetadata):
    """One machine's service.

    Its facts are ``instance-id``, ``instance-name``, ``instance-type``, ``hostname``, ``image-id``, ``mac``,
    ``private-ipv4``, ``region-id``, ``zone-id``, ``vpc-id``, ``vpc-cidr-block``, ``vswitch-id``,
    ``vswitch-cidr-block``, ``owner-account-id``, ``serial-number``; ``market`` (``spot`` or ``on-demand``);
    ``http-endpoint``, ``http-tokens`` and ``http-put-response-hop-limit`` as RunInstances has them; ``role``
    with ``role-seed`` (see ``rolekeys``) and ``credential-seconds``. The tags shown are those of the
    machine's host: the emulated ECS gives it none while InstanceMetadataTags is not enabled.
    """

    versions: ClassVar[tuple[str, ...]] = ("2016-01-01", "latest")
    pass_header: ClassVar[str] = "x-aliyun-ecs-metadata-token"  # noqa: S105 # the name of a header
    bare_status: ClassVar[int] = 403
    titles: ClassVar[Mapping[int, str]] = {
        **TokenedMetadata.titles,
        400: "Missing or Invalid Parameters",
    }

    def __init__(
        self,
        view: MachineView,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        super().__init__(view, now=now)
        self._credentials = ShownCredentials(RoleKeys, view.facts, lead=RENEWED_BEFORE, now=now)

    def answer(self, request: Request) -> Answer:
        """Answer one request; refuse all while the endpoint is disabled."""
        if self.view.facts.get("http-endpoint", "enabled") == "disabled":
            return self.refuse(403)
        return super().answer(request)

    def needs_token(self) -> bool:
        """Return whether this instance is in security hardening mode."""
        return bool(self.view.facts.get("http-tokens", "optional") == "required")

    def token_hops(self) -> int:
        """Return the instance's hop limit."""
        return int(self.view.facts.get("http-put-response-hop-limit", 1))

    def tree(self) -> Tree:
        """Return what the instance can read."""
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
            instance["spot"] = {"termination-time": shown_time(notice.deadline)}
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
        held = self._credentials.current()
        return json.dumps(
            {
                "AccessKeyId": held.access_key,
                "AccessKeySecret": held.secret_key,
                "Expiration": shown_time(held.expires_at),
                "SecurityToken": held.token,
                "LastUpdated": shown_time(self._credentials.updated_at),
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
