import pytest
from made_records import Records


@pytest.fixture
def records():
    return Records()
