"""The drivers of ``cloudspot driver deploy``, and the remains of interrupted deployments and removals."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

import msgspec

from cloudspot.errors import CloudspotError
from cloudspot.interfaces import Inventory
from cloudspot.model import Asset
from cloudspot.plugin import machinetags
from cloudspot.plugin.answers import moment, moment_of
from cloudspot.plugin.driverinventory import driver_name
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.errors import ERRORS, ignored
from cloudspot_aws.functionhost import LOG_PREFIX, LambdaHost

_KIND: Final = "driver's "
_PREFIX: Final = "cloudspot-driver-"
_NAME: Final = re.compile(_PREFIX + "[0-9a-f]{12}")


class DriverInventory(Inventory):
    """Each resource of a driver is an asset of its own; a driver is in use as long as its function exists.

    A resource counts as cloudspot's only if both its name and its tag say so.
    """

    def __init__(self, clients: AwsClients) -> None:
        """Do no I/O."""
        self.title = f"drivers in {clients.region}"
        self._clients = clients

    def assets(self, store_urls: Sequence[str]) -> Sequence[Asset]:
        """Return functions, rules, roles and logs; see Inventory."""
        with ERRORS.translated(f"listing the {self.title}"):
            # Rules come first: a rule is made after its function, so a rule without a function has lost it.
            rules = list(self._rules())
            functions = list(self._functions())
            pieces = [*rules, *functions, *self._roles(), *self._logs()]
        standing = {one.id for one in functions}
        of_store = {driver_name(one): one for one in store_urls}
        assets = []
        for piece in pieces:
            match = _NAME.search(piece.id)
            assert match is not None, "found by it"
            store_url = of_store.get(match[0], piece.store_url)
            assets.append(msgspec.structs.replace(piece, store_url=store_url, is_in_use=match[0] in standing))
        return assets

    def end(self, asset: Asset) -> None:
        """Remove the piece.

        Raises:
            CloudspotError: the resource had lost its function, but the driver has been deployed again since.
        """
        host, kind = LambdaHost(self._clients), asset.kind.removeprefix(_KIND)
        match = _NAME.search(asset.id)
        assert match is not None, "found by it"
        # A resource in use is removed only if its store no longer exists, and its function is removed with
        # it.
        if kind != "function" and not asset.is_in_use and host.status(match[0]) is not None:
            raise CloudspotError(f"{asset.id}: a newly deployed driver uses it now")
        host.remove_piece(kind, asset.id)

    def _rules(self) -> Iterator[Asset]:
        client = self._clients.client("events")
        for page in client.get_paginator("list_rules").paginate(NamePrefix=_PREFIX):
            for rule in page["Rules"]:
                listed = client.list_tags_for_resource(ResourceARN=rule["Arn"])["Tags"]
                own_tags = {tag["Key"]: tag["Value"] for tag in listed}
                yield from self._piece("rule", rule["Name"], own_tags, None)

    def _functions(self) -> Iterator[Asset]:
        client = self._clients.client("lambda")
        for page in client.get_paginator("list_functions").paginate():
            for function in page["Functions"]:
                if _NAME.fullmatch(function["FunctionName"]):
                    at = moment(function["LastModified"][:19])  # in UTC, with more digits than Python reads
                    own_tags = client.list_tags(Resource=function["FunctionArn"])["Tags"]
                    yield from self._piece("function", function["FunctionName"], own_tags, at)

    def _roles(self) -> Iterator[Asset]:
        """Yield the roles of this region's drivers by their names: roles belong to the whole account."""
        client = self._clients.client("iam")
        for page in client.get_paginator("list_roles").paginate():
            for role in page["Roles"]:
                name = role["RoleName"]
                if re.fullmatch(f"{_NAME.pattern}-{re.escape(self._clients.region)}", name):
                    with ignored("NoSuchEntity"):
                        listed = client.list_role_tags(RoleName=name)["Tags"]
                        own_tags = {tag["Key"]: tag["Value"] for tag in listed}
                        yield from self._piece("role", name, own_tags, moment(role["CreateDate"]))

    def _logs(self) -> Iterator[Asset]:
        client = self._clients.client("logs")
        for page in client.get_paginator("describe_log_groups").paginate(
            logGroupNamePrefix=LOG_PREFIX + _PREFIX
        ):
            for group in page["logGroups"]:
                at = moment_of(group["creationTime"] / 1000)
                own_tags = client.list_tags_log_group(logGroupName=group["logGroupName"])["tags"]
                yield from self._piece("log", group["logGroupName"], own_tags, at)

    def _piece(self, kind: str, name: str, tags: dict[str, str], at: datetime | None) -> Iterator[Asset]:
        if machinetags.STORE in tags and _NAME.search(name):
            yield Asset(
                kind=_KIND + kind,
                id=name,
                where=self._clients.region,
                store_url=tags[machinetags.STORE],
                created_at=at,
            )
