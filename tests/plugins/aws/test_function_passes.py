"""Passes of a driver on the emulated AWS Lambda."""

import json
from types import MappingProxyType

import boto3
import pytest
from support.clouds.functionpasstests import InterruptedPassTests

from cloudspot_aws import functionhost
from cloudspot_aws_sandbox.cloud import REGION, EmulatedAws

pytestmark = pytest.mark.enclosed


class TestLambdaPasses(InterruptedPassTests):
    job_settings = ('providers.aws.instance_types=["m5.large"]',)
    launch_call = "RunInstances"
    # S3 Standard in us-east-1 (Amazon S3 pricing, from memory).
    request_prices = MappingProxyType({"read": 0.0004e-3, "write": 0.005e-3})
    function_prices = (
        functionhost.MEMORY_MIB / 1024 * functionhost.USD_A_GB_SECOND, functionhost.USD_A_CALL, 0.0,
    )  # fmt: skip

    def cloud(self):
        boto3.setup_default_session()
        return EmulatedAws()

    def functions(self, cloud):
        return cloud._functions

    def invoke(self, cloud, name, event):
        done = cloud._functions.invoke(name, json.dumps(event).encode(), REGION)
        return not done.is_error, done.log
