"""Passes of a driver on the emulated AWS Lambda."""

import boto3
import pytest
from functionpasstests import FunctionPassTests

from cloudspot_aws_sandbox.cloud import REGION, EmulatedAws

pytestmark = pytest.mark.enclosed


class TestLambdaPasses(FunctionPassTests):
    job_settings = ('providers.aws.instance_types=["m5.large"]',)
    launch_call = "RunInstances"

    def cloud(self):
        boto3.setup_default_session()
        return EmulatedAws()

    def functions(self, cloud):
        return cloud._functions

    def invoke(self, cloud, name):
        return not cloud._functions.invoke(name, b"{}", REGION).is_error
