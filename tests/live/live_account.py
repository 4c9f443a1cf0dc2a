"""The promises of a provisioner on a real account; run by its name alone, since it costs money.

pytest tests/live/live_account.py --live aws --live-options '{"region": "us-east-1"}'
"""

import json

import pytest

from cloudspot.testing.livekit import LiveAccount, LiveProvisionerTests


@pytest.fixture(scope="session")
def live(pytestconfig):
    options = json.loads(pytestconfig.getoption("--live-options"))
    most = pytestconfig.getoption("--live-cost")
    yield from LiveAccount.session(pytestconfig.getoption("--live"), options, most_cost=most)


@pytest.mark.timeout(3600)
class TestLiveAccount(LiveProvisionerTests):
    pass
