"""The emulated Compute Engine's networks and firewall rules, which are kept but not enforced.

Source: Compute Engine API reference, Networks and Firewalls; "VPC networks", default networks and their rules
(checked 2026-11; the wording of refusals is from memory).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from cloudspot_gcp_sandbox.apierror import ApiError
from cloudspot_gcp_sandbox.catalogue import BASE, ZONES, number_of
from cloudspot_gcp_sandbox.launching import NAME, Site, bad, missing
from cloudspot_gcp_sandbox.operations import Operation, Operations, timestamp

_NODE_RULE_FIELDS: Final = frozenset(
    {
        *("name", "description", "network", "direction", "priority", "allowed", "denied", "disabled"),
        *("sourceRanges", "sourceTags", "sourceServiceAccounts", "targetTags", "targetServiceAccounts"),
    }
)


class Networks:
    """The project's networks. The caller holds the machines' lock."""

    def __init__(self, site: Site, operations: Operations, clock: Callable[[], float]) -> None:
        self._site = site
        self._operations = operations
        self._clock = clock
        self.rules: dict[str, dict[str, Any]] = {}

    def insert(self, _path: Mapping[str, str], body: Mapping[str, Any], caller: str, _: object) -> Operation:
        """Make a network in auto mode."""
        name = body.get("name", "")
        if not NAME.fullmatch(name):
            raise bad("resource.name", name, f"Must be a match of regex '{NAME.pattern}'")
        own = f"global/networks/{name}"
        if own in self._site.networks:
            raise self._taken(own)
        if body.get("autoCreateSubnetworks") is not True:
            raise ApiError(501, "notImplemented", "the emulated Compute Engine makes only auto mode networks")
        self._site.networks = [*self._site.networks, own]
        subnetworks = {f"regions/{region}/subnetworks/{name}": own for region in ZONES}
        self._site.subnetworks = {**self._site.subnetworks, **subnetworks}
        return self._changed(own, "insert", caller)

    def delete(self, path: Mapping[str, str], _body: object, caller: str, _: object) -> Operation:
        """Delete a network unless a firewall rule names it."""
        own = f"global/networks/{path['network']}"
        if own not in self._site.networks:
            raise missing(self._site, own)
        users = [name for name, rule in self.rules.items() if rule["network"].endswith(f"/{own}")]
        if users:
            raise ApiError(
                400,
                "resourceInUseByAnotherResource",
                f"The network resource 'projects/{self._site.project}/{own}' is already being used by "
                f"'projects/{self._site.project}/global/firewalls/{users[0]}'",
            )
        self._site.networks = [one for one in self._site.networks if one != own]
        self._site.subnetworks = {
            name: network for name, network in self._site.subnetworks.items() if network != own
        }
        return self._changed(own, "delete", caller)

    def insert_rule(
        self, _path: Mapping[str, str], body: Mapping[str, Any], caller: str, _: object
    ) -> Operation:
        """Make a firewall rule."""
        name = body.get("name", "")
        if not NAME.fullmatch(name):
            raise bad("resource.name", name, f"Must be a match of regex '{NAME.pattern}'")
        if set(body) - _NODE_RULE_FIELDS:
            raise ApiError(501, "notImplemented", "the emulated Compute Engine knows no such field of a rule")
        own = f"global/firewalls/{name}"
        if name in self.rules:
            raise self._taken(own)
        network = "global/networks/" + str(body.get("network", "global/networks/default")).rpartition("/")[2]
        if network not in self._site.networks:
            raise missing(self._site, network)
        by_account = {"sourceServiceAccounts", "targetServiceAccounts"} & set(body)
        if by_account and {"sourceTags", "targetTags"} & set(body):
            raise bad("resource", name, "Tags and service accounts cannot be used together.")
        self.rules[name] = {
            "kind": "compute#firewall",
            "id": number_of(own),
            "creationTimestamp": timestamp(self._clock()),
            "direction": "INGRESS",
            "priority": 1000,
            **body,
            "network": f"{BASE}projects/{self._site.project}/{network}",
            "selfLink": f"{BASE}projects/{self._site.project}/{own}",
        }
        return self._changed(own, "insert", caller)

    def delete_rule(self, path: Mapping[str, str], _body: object, caller: str, _: object) -> Operation:
        """Delete a firewall rule."""
        own = f"global/firewalls/{path['firewall']}"
        if self.rules.pop(path["firewall"], None) is None:
            raise missing(self._site, own)
        return self._changed(own, "delete", caller)

    def _taken(self, own: str) -> ApiError:
        return ApiError(
            409, "alreadyExists", f"The resource 'projects/{self._site.project}/{own}' already exists"
        )

    def _changed(self, own: str, kind: str, caller: str) -> Operation:
        target = f"projects/{self._site.project}/{own}"
        return self._operations.add("global", kind, target, user=caller)
