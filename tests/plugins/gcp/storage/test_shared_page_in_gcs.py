"""A shared page in a browser that has nothing but the link."""

import pytest
from support.clouds.sharedpages import check_shared_page


@pytest.mark.full
def test_a_shared_page_is_shown_without_credentials_until_its_stated_end_and_not_after(gcp, store, tmp_path):
    check_shared_page(store, tmp_path, gcp.faults)
