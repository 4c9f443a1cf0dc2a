"""Placement groups, which moto does not have."""

from __future__ import annotations

import fnmatch
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPES

from cloudspot_aws_sandbox.machines import Machines
from cloudspot_aws_sandbox.query import ApiError


@dataclass(frozen=True)
class Group:
    """One placement group of a region."""

    id: str
    name: str
    strategy: str
    tags: Mapping[str, str]

    def described(self) -> dict[str, Any]:
        """Return the group in the form of DescribePlacementGroups."""
        return {
            "GroupId": self.id,
            "GroupName": self.name,
            "State": "available",
            "Strategy": self.strategy,
            "Tags": [{"Key": name, "Value": value} for name, value in self.tags.items()],
        }

    def values(self, name: str) -> list[str]:
        """Return the value that the named filter compares.

        Raises:
            ApiError: the filter is not emulated.
        """
        if name.startswith("tag:"):
            return [self.tags[name[4:]]] if name[4:] in self.tags else []
        known = {"group-name": [self.name], "strategy": [self.strategy], "state": ["available"]}
        known["tag-key"] = list(self.tags)
        if name not in known:
            raise ApiError("InvalidParameterValue", f"The filter '{name}' is invalid")
        return known[name]


class PlacementGroups:
    """The account's groups; a group with a machine in it cannot be deleted."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._groups: dict[tuple[str, str], Group] = {}

    def create(self, parameters: Mapping[str, Any], region: str) -> Mapping[str, Any]:
        """Answer CreatePlacementGroup."""
        name, strategy = parameters.get("GroupName", ""), parameters.get("Strategy")
        if not name or len(name) > 255 or strategy is None:
            raise ApiError(
                "MissingParameter", "The request must contain the parameters groupName and strategy"
            )
        if (region, name) in self._groups:
            raise ApiError("InvalidPlacementGroup.Duplicate", f"The Placement Group '{name}' already exists.")
        specifications = parameters.get("TagSpecifications", ())
        if any(one.get("ResourceType") != "placement-group" for one in specifications):
            raise ApiError("InvalidParameterValue", "only placement-group may be tagged here")
        tags = {tag["Key"]: tag["Value"] for one in specifications for tag in one["Tags"]}
        group = Group(f"pg-{secrets.token_hex(8)}0", name, strategy, tags)
        self._groups[region, name] = group
        return {"PlacementGroup": group.described()}

    def delete(self, parameters: Mapping[str, Any], region: str) -> Mapping[str, Any]:
        """Answer DeletePlacementGroup."""
        name = parameters["GroupName"]
        if (region, name) not in self._groups:
            raise ApiError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
        if any(one.group == name and one.region == region for one in self._machines.alive()):
            raise ApiError("InvalidPlacementGroup.InUse", f"The Placement Group '{name}' is in use.")
        del self._groups[region, name]
        return {}

    def describe(self, parameters: Mapping[str, Any], region: str) -> Mapping[str, Any]:
        """Answer DescribePlacementGroups."""
        matching = [group for (where, _), group in sorted(self._groups.items()) if where == region]
        names = parameters.get("GroupNames")
        if names:
            unknown = sorted(set(names) - {group.name for group in matching})
            if unknown:
                message = f"The Placement Group '{unknown[0]}' is unknown."
                raise ApiError("InvalidPlacementGroup.Unknown", message)
            matching = [group for group in matching if group.name in names]
        for filter_ in parameters.get("Filters", ()):
            matching = [
                group
                for group in matching
                if any(
                    fnmatch.fnmatchcase(v, wish)
                    for v in group.values(filter_["Name"])
                    for wish in filter_["Values"]
                )
            ]
        return {"PlacementGroups": [group.described() for group in matching]}

    def check(self, parameters: Mapping[str, Any], region: str) -> None:
        """Refuse a launch into a group that does not exist, or that does not accept the instance type.

        Raises:
            ApiError: the launch is refused, with the wording of RunInstances.
        """
        name = parameters.get("Placement", {}).get("GroupName")
        if name is None:
            return
        group = self._groups.get((region, name))
        if group is None:
            raise ApiError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
        type_name = parameters["InstanceType"]
        if group.strategy not in INSTANCE_TYPES[type_name]["PlacementGroupInfo"]["SupportedStrategies"]:
            raise ApiError(
                "InvalidParameterCombination",
                f"Placement group strategy '{group.strategy}' is not supported by instance type {type_name}",
            )
        used = {one.zone for one in self._machines.alive() if one.group == name and one.region == region}
        zone = parameters.get("Placement", {}).get("AvailabilityZone")
        if group.strategy == "cluster" and zone is not None and used - {zone}:
            raise ApiError(
                "InvalidParameterValue",
                f"Instances in the Placement Group '{name}' must be launched in the zone {min(used)}.",
            )
