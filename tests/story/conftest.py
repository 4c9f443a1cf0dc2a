import pytest
from support.records.made_records import Records


@pytest.fixture
def records():
    return Records()
