"""AWS's command line as cloudspot prints it, run on an emulated account.

AWS's command line is no dependency of the tests: its operations and parameters are read from botocore's
models, as it reads them itself, and everything that it would refuse raises here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from botocore import xform_name
from support.clouds.documented_setup import options_of

_SERVICES = {"s3api": "s3"}


def run_command(client: Callable[[str], Any], words: Sequence[str]) -> None:
    """Run ``SERVICE OPERATION --option value ...`` with the client of that service."""
    (service, operation), options = options_of(list(words))
    used = client(_SERVICES.get(service, service))
    model = used.meta.service_model
    (name,) = [one for one in model.operation_names if xform_name(one, "-") == operation]
    shapes = model.operation_model(name).input_shape
    members = {xform_name(one, "-"): one for one in (shapes.members if shapes else ())}
    parameters = {}
    for option, value in options.items():
        kind = shapes.members[members[option]].type_name
        parameters[members[option]] = value if kind == "string" else json.loads(value)
    getattr(used, xform_name(name))(**parameters)
