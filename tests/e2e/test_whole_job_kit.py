"""The kit of whole jobs, on the local provider and in the sandboxes of the clouds."""

import pytest
from support.jobs.isolated_machines import needs_isolated_machines

from cloudspot.testing.jobkit import CLOUDSPOT, JobCloud, WholeJobTests

RECLAIM = ("--reclaim", "rank=0,after_share=0.4,notice=60")


@pytest.mark.full
class TestLocalJobs(WholeJobTests):
    @pytest.fixture
    def cloud(self):
        return JobCloud(provider="local")


@pytest.mark.soak
@needs_isolated_machines
class TestSandboxedJobs(WholeJobTests):
    @pytest.fixture(params=["aws", "gcp", "aliyun"])
    def cloud(self, request):
        prefix = (*CLOUDSPOT, "sandbox", request.param, *RECLAIM, "--")
        # Alibaba Cloud's own image has no torch.
        settings = ('providers.aliyun.image_family="cloudspot-torch"',) if request.param == "aliyun" else ()
        return JobCloud(provider=request.param, settings=settings, prefix=prefix, is_reclaimed_by_prefix=True)
