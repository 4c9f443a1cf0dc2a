"""The kits on a real account and a real store; run by its name alone, since it costs money.

pytest tests/live/live_account.py --live aws --live-options '{"region": "us-east-1"}' --live-store s3://BUCKET
"""

import json

import pytest

from cloudspot.testing.livekit import LiveAccount, LiveJobTests, LiveProvisionerTests, LiveStoreTests


@pytest.fixture(scope="session")
def live(pytestconfig):
    options = json.loads(pytestconfig.getoption("--live-options"))
    most = pytestconfig.getoption("--live-cost")
    yield from LiveAccount.session(pytestconfig.getoption("--live"), options, most_cost=most)


@pytest.fixture(scope="session")
def live_store(pytestconfig):
    return pytestconfig.getoption("--live-store")


class TestLiveStore(LiveStoreTests):
    pass


@pytest.mark.timeout(3600)
class TestLiveAccount(LiveProvisionerTests):
    pass


class TestLiveJobs(LiveJobTests):
    pass
