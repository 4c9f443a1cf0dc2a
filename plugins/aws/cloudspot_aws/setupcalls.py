"""Calls of AWS's services as data: the same call is made with boto3, and printed for AWS's command line."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from botocore import xform_name

from cloudspot_aws.clients import AwsClients
from cloudspot_aws.errors import ignored

_COMMANDS = {"s3": "s3api"}
"""How the command line calls a service, where it does so in another way than boto3."""


@dataclass(frozen=True)
class AwsCall:
    """One call; it is safe to repeat."""

    service: str
    operation: str
    """As the API calls it: ``CreateRole``."""
    parameters: Mapping[str, Any]
    done: tuple[str, ...] = ()
    """The error codes that say that it is done already."""

    def run(self, clients: AwsClients) -> Any:
        """Make the call; return the answer, or None if it is done already."""
        call = getattr(clients.client(self.service), xform_name(self.operation))
        with ignored(*self.done):
            return call(**self.parameters)
        return None

    def command(self) -> str:
        """Return the same call as a shell command."""
        words = ["aws", _COMMANDS.get(self.service, self.service), xform_name(self.operation, "-")]
        for name, value in self.parameters.items():
            option = f"--{xform_name(name, '-')}"
            if isinstance(value, bool):
                words.append(option if value else f"--no-{option[2:]}")
            else:
                words += [option, value if isinstance(value, str) else json.dumps(value)]
        return shlex.join(words)
