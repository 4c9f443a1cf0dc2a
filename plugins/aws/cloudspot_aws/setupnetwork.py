"""The network of an AWS account's setup: the default VPC, and a group whose members can reach one another.

Source: EC2 API reference, the operations' pages, and VPC user guide, "Default VPCs" (checked 2026-11).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloudspot.model import PartState
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.errors import ERRORS
from cloudspot_aws.setupcalls import AwsCall
from cloudspot_aws.setuppart import TAGS, AwsPart


class DefaultNetwork(AwsPart):
    """The region's default VPC, which new accounts have and locked-down accounts may lack."""

    def __init__(self, clients: AwsClients) -> None:
        """Do no I/O."""
        super().__init__(
            clients,
            "network",
            f"default VPC in {clients.region}",
            "holds the machines; its subnets lead to S3",
            making=[AwsCall("ec2", "CreateDefaultVpc", {}, ("DefaultVpcAlreadyExists",))],
            removing=[],
        )

    def state(self, *, is_own: bool) -> PartState:
        """Return whether the region has a default VPC with subnets."""
        vpc = default_vpc(self.clients)
        if vpc is None:
            return PartState(exists=False)
        filters = [{"Name": "vpc-id", "Values": [vpc]}]
        subnets = self.clients.client("ec2").describe_subnets(Filters=filters)["Subnets"]
        none = "it has no subnet: aws ec2 create-default-subnet --availability-zone ZONE makes one"
        return PartState(exists=True, lacks=() if subnets else (none,))

    def delete(self) -> None:
        """Delete the VPC with its subnets and its gateway."""
        ec2, vpc = self.clients.client("ec2"), default_vpc(self.clients)
        if vpc is None:
            return
        filters = [{"Name": "vpc-id", "Values": [vpc]}]
        attached = [{"Name": "attachment.vpc-id", "Values": [vpc]}]
        for one in ec2.describe_subnets(Filters=filters)["Subnets"]:
            ec2.delete_subnet(SubnetId=one["SubnetId"])
        for one in ec2.describe_internet_gateways(Filters=attached)["InternetGateways"]:
            gateway = one["InternetGatewayId"]
            ec2.detach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
            ec2.delete_internet_gateway(InternetGatewayId=gateway)
        ec2.delete_vpc(VpcId=vpc)


class NodeGroup(AwsPart):
    """A security group of the default VPC that admits traffic from its members only."""

    def __init__(self, clients: AwsClients, name: str) -> None:
        """Do no I/O."""
        members = {
            "IpProtocol": "tcp",
            "FromPort": 0,
            "ToPort": 65535,
            "UserIdGroupPairs": [{"GroupName": name}],
        }
        purpose = "lets the nodes of a job reach one another, and nobody else reach them"
        super().__init__(
            clients,
            "security group",
            name,
            purpose,
            making=[
                AwsCall(
                    "ec2",
                    "CreateSecurityGroup",
                    {
                        "GroupName": name,
                        "Description": f"cloudspot: {purpose}",
                        "TagSpecifications": [{"ResourceType": "security-group", "Tags": list(TAGS)}],
                    },
                    ("InvalidGroup.Duplicate",),
                ),
                AwsCall(
                    "ec2",
                    "AuthorizeSecurityGroupIngress",
                    {"GroupName": name, "IpPermissions": [members]},
                    ("InvalidPermission.Duplicate",),
                ),
            ],
            removing=[AwsCall("ec2", "DeleteSecurityGroup", {"GroupName": name}, ("InvalidGroup.NotFound",))],
        )

    def id(self) -> str | None:
        """Return the group's id, or None if the group does not exist."""
        with ERRORS.translated(f"looking at {self.kind} {self.name}"):
            found = self._describe()
        return None if found is None else str(found["GroupId"])

    def state(self, *, is_own: bool) -> PartState:
        """Return whether the group exists and admits traffic from its members only."""
        group = self._describe()
        if group is None:
            return PartState(exists=False)
        beyond, has_members = [], False
        for rule in group["IpPermissions"]:
            ports = f"{rule['IpProtocol']} {rule.get('FromPort', 'all')}-{rule.get('ToPort', 'all')}"
            ranges = [*rule.get("IpRanges", ()), *rule.get("Ipv6Ranges", ()), *rule.get("PrefixListIds", ())]
            beyond += [f"it lets in {next(iter(one.values()))} at {ports}" for one in ranges]
            for pair in rule.get("UserIdGroupPairs", ()):
                if pair.get("GroupId") != group["GroupId"]:
                    beyond.append(f"it lets in group {pair.get('GroupId')} at {ports}")
                elif rule["IpProtocol"] == "-1" or (rule.get("FromPort"), rule.get("ToPort")) == (0, 65535):
                    has_members = True
        lacks = () if has_members else ("its members do not reach one another",)
        return PartState(exists=True, excess=tuple(beyond), lacks=lacks)

    def _describe(self) -> Mapping[str, Any] | None:
        vpc = default_vpc(self.clients)
        if vpc is None:
            return None
        filters = [{"Name": "group-name", "Values": [self.name]}, {"Name": "vpc-id", "Values": [vpc]}]
        found = self.clients.client("ec2").describe_security_groups(Filters=filters)["SecurityGroups"]
        return found[0] if found else None


def default_vpc(clients: AwsClients) -> str | None:
    """Return the id of the region's default VPC, or None if it has none."""
    with ERRORS.translated("looking for the default VPC"):
        found = clients.client("ec2").describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])
    return str(found["Vpcs"][0]["VpcId"]) if found["Vpcs"] else None
