"""Passes of a driver on the emulated Function Compute."""

import sys

import pytest
from functionpasstests import FunctionPassTests

from cloudspot_aliyun import functionhost
from cloudspot_aliyun_sandbox.cloud import EmulatedAliyun

pytestmark = [
    pytest.mark.enclosed,
    pytest.mark.soak,
    pytest.mark.skipif(
        sys.version_info[:2] not in functionhost.PYTHONS, reason="Function Compute has no such Python"
    ),
]


class TestFunctionComputePasses(FunctionPassTests):
    launch_call = "RunInstances"

    def cloud(self):
        return EmulatedAliyun()

    def functions(self, cloud):
        return cloud._functions

    def invoke(self, cloud, name):
        return not cloud._functions.invoke(name, b"{}").is_error
