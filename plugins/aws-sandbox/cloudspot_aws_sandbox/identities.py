"""The identities of the account and their permissions: its owner, users and roles."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.iam.models import iam_backends

from cloudspot.emulation.policies import is_allowed
from cloudspot.emulation.role_credentials import RoleKeys, Secrets

NO_CONTEXT: Final[Mapping[str, str]] = MappingProxyType({})
_TAG: Final = "ec2:ResourceTag/"


class Identities(Mapping[str, str]):
    """All identities of the account. Maps each access key to its secret."""

    def __init__(self, owner: Mapping[str, str], keys: RoleKeys, *, machines_role: str) -> None:
        """``owner`` has the owner's key and secret; role keys belong to machines or functions."""
        self._owner = owner
        self._keys = keys
        self._known = Secrets(owner, keys)
        self._machines_role = machines_role
        self.function_roles: dict[str, str] = {}
        """The role of each function, by the function's key."""

    def __getitem__(self, access_key: str) -> str:
        user_key = _iam().access_keys.get(access_key)
        if user_key is not None and user_key.status == "Active":
            return str(user_key.secret_access_key)
        return self._known[access_key]

    def __iter__(self) -> Iterator[str]:
        return iter((*self._known, *_iam().access_keys))

    def __len__(self) -> int:
        return len(tuple(iter(self)))

    def may(self, key: str, right: str, arn: str, context: Mapping[str, str] = NO_CONTEXT) -> bool:
        """Return whether the owner of the key has a permission on a resource, in the request's context."""
        if key in self._owner:
            return True
        iam = _iam()
        if self._keys.is_role_key(key):
            name = self.function_roles.get(key, self._machines_role)
            holders = [one for one in iam.roles.values() if one.name == name]
        else:
            user = iam.get_user_from_access_key_id(key)
            holders = [] if user is None else [user, *iam.get_groups_for_user(user.name)]
        return is_allowed(_policies(holders), right, arn, lambda name: _value(name, arn, context))


def _policies(holders: Iterable[Any]) -> Iterator[str]:
    for one in holders:
        yield from (text if isinstance(text, str) else json.dumps(text) for text in one.policies.values())
        for managed in one.managed_policies.values():
            for version in managed.versions:
                if version.version_id == managed.default_version_id:
                    yield version.document


def _value(name: str, arn: str, context: Mapping[str, str]) -> str | None:
    """Return the value of a condition key, or None if the request has none."""
    if not name.startswith(_TAG):
        return context.get(name)
    region, resource = arn.split(":")[3], arn.rpartition("/")[2]
    found: str | None = (
        ec2_backends[DEFAULT_ACCOUNT_ID][region].tags.get(resource, {}).get(name.removeprefix(_TAG))
    )
    return found


def _iam() -> Any:
    return iam_backends[DEFAULT_ACCOUNT_ID]["aws"]
