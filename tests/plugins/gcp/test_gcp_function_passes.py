"""Passes of a driver on the emulated Cloud Run functions."""

from base64 import b64decode
from types import MappingProxyType

import pytest
from support.clouds.functionpasstests import FunctionPassTests

from cloudspot_gcp import functionhost
from cloudspot_gcp.functionschedules import MARK
from cloudspot_gcp_sandbox import strict_functions, strict_iam
from cloudspot_gcp_sandbox.cloud import EmulatedGcp

PASS_MARK = f"{MARK} "
pytestmark = [pytest.mark.enclosed, pytest.mark.soak]


class TestCloudRunPasses(FunctionPassTests):
    # Cloud Storage, Standard in one region (from memory): classes A and B.
    request_prices = MappingProxyType({"read": 0.0004e-3, "write": 0.005e-3})
    function_prices = (
        functionhost.VCPUS * functionhost.USD_A_VCPU_SECOND
        + functionhost.MEMORY_MIB / 1024 * functionhost.USD_A_GIB_SECOND,
        functionhost.USD_A_CALL,
        functionhost.USD_A_SCHEDULE,
    )

    def cloud(self):
        # What is new is known soon.
        strict_iam.LAG_SECONDS, strict_functions.BUILD_SECONDS = 0.2, 0.2
        return EmulatedGcp()

    def functions(self, cloud):
        return cloud.functions

    def invoke(self, cloud, name, event):
        name = f"{name}-reap" if event else name
        (job,) = (one for path, one in cloud.scheduler._jobs.items() if path.endswith(f"/{name}"))
        target = job["httpTarget"]
        # The schedule itself never runs it twice at once; a notice and the schedule may.
        answer = cloud.functions.call(
            target["uri"],
            target["headers"],
            b64decode(target["body"]),
            email=target["oidcToken"]["serviceAccountEmail"],
        )
        said = (cloud.functions._directory / "functions.log").read_text()
        return answer.status == 200, said.rpartition(PASS_MARK)[0].rpartition(PASS_MARK)[2]

    def id_of(self, machine):
        return "/".join(str(machine.metadata[part]) for part in ("zone", "name", "id"))
