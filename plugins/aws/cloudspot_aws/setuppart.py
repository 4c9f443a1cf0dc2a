"""A part of an AWS account's setup: the calls that make it, and those that remove it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from cloudspot.plugin.setupparts import FREE, CloudPart
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.errors import ERRORS, ignored
from cloudspot_aws.setupcalls import AwsCall

Answer = TypeVar("Answer")

TAG: Final = "cloudspot-setup"
"""The tag on each part that can have tags, for the account's users and its bills."""
TAGS: Final = ({"Key": TAG, "Value": "cloudspot"},)


class AwsPart(CloudPart):
    """A part that is made and removed by lists of calls."""

    provider = "aws"
    errors = ERRORS
    forbids = ("service control policy", "permissions boundary", "resource control policy")

    def __init__(
        self,
        clients: AwsClients,
        kind: str,
        name: str,
        purpose: str,
        *,
        making: Sequence[AwsCall],
        removing: Sequence[AwsCall],
        cost: str = FREE,
        rights: Sequence[str] = (),
    ) -> None:
        """Do no I/O."""
        commands = [call.command() for call in making]
        super().__init__(kind, name, purpose, cost=cost, rights=rights, commands=commands)
        self.clients = clients
        self.making, self.removing = making, removing

    def create(self) -> None:
        """Make the calls; see CloudPart."""
        for call in self.making:
            call.run(self.clients)

    def delete(self) -> None:
        """Make the calls that remove the part; see CloudPart."""
        for call in self.removing:
            call.run(self.clients)


def unless(code: str, ask: Callable[[], Answer]) -> Answer | None:
    """Return the response, or None if the service refuses with ``code`` because the part does not exist."""
    with ignored(code):
        return ask()
    return None
