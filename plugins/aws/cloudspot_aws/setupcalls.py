"""AWS calls as data, which can be made with boto3 and printed as commands of the AWS CLI."""

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
"""The AWS CLI's names of services, where they differ from boto3's."""


@dataclass(frozen=True)
class AwsCall:
    """A call that is safe to repeat."""

    service: str
    operation: str
    """The call's name in the API, such as ``CreateRole``."""
    parameters: Mapping[str, Any]
    done: tuple[str, ...] = ()
    """The error codes that mean that the call was made before."""

    def run(self, clients: AwsClients) -> Any:
        """Make the call; return the response, or None if the call was made before."""
        call = getattr(clients.client(self.service), xform_name(self.operation))
        with ignored(*self.done):
            return call(**self.parameters)
        return None

    def command(self) -> str:
        """Return the call as a shell command."""
        arguments = ["aws", _COMMANDS.get(self.service, self.service), xform_name(self.operation, "-")]
        for name, value in self.parameters.items():
            option = f"--{xform_name(name, '-')}"
            if isinstance(value, bool):
                arguments.append(option if value else f"--no-{option[2:]}")
            else:
                arguments += [option, value if isinstance(value, str) else json.dumps(value)]
        return shlex.join(arguments)
