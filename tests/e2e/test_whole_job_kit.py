"""The kit of whole jobs on the local provider; the clouds' own such jobs are in test_sandboxes.py."""

import pytest

from cloudspot.testing.jobkit import JobCloud, WholeJobTests


class TestLocalJobs(WholeJobTests):
    @pytest.fixture
    def cloud(self):
        return JobCloud(provider="local")
