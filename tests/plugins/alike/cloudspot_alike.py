"""An emulated AWS where all machines have the launch index 0, as nothing in EC2's documentation rules out for spot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from moto.ec2.models.instances import Instance

from cloudspot.hookspecs import hookimpl
from cloudspot_aws_sandbox.cloud import EmulatedAws

cloudspot_api_version = 2


@hookimpl
def cloudspot_sandbox(name: str) -> type[object] | None:
    return AlikeAws if name == "alike-aws" else None


class AlikeAws(EmulatedAws):
    name: ClassVar[str] = "alike-aws"

    def start(self, *arguments: Any, **options: Mapping[str, Any]) -> None:
        Instance.ami_launch_index = property(lambda _self: 0, lambda _self, _index: None)
        super().start(*arguments, **options)
