"""Passes of a driver on the emulated Function Compute."""

import json
import sys
from types import MappingProxyType

import pytest
from support.clouds.functionpasstests import FunctionPassTests

from cloudspot_aliyun import functionhost
from cloudspot_aliyun_sandbox.cloud import EmulatedAliyun

pytestmark = [
    pytest.mark.enclosed,
    pytest.mark.soak,
    pytest.mark.skipif(
        sys.version_info[:2] not in functionhost.LIMITS.glibc, reason="Function Compute has no such Python"
    ),
]


class TestFunctionComputePasses(FunctionPassTests):
    currency = "CNY"
    # OSS Standard in mainland China (from memory); listings and deletions count as puts.
    request_prices = MappingProxyType(dict.fromkeys(("read", "write", "delete"), 0.01e-4))
    function_prices = (
        functionhost.CNY_A_CU
        * (functionhost.VCPUS + functionhost.MEMORY_MIB / 1024 * functionhost.CU_A_GB_SECOND),
        functionhost.CNY_A_CU * functionhost.CU_A_CALL,
        0.0,
    )

    def cloud(self):
        return EmulatedAliyun()

    def functions(self, cloud):
        return cloud._functions

    def invoke(self, cloud, name, event):
        done = cloud._functions.invoke(name, json.dumps(event).encode())
        return not done.is_error, done.log
