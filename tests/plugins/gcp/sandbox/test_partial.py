"""What ``fields`` leaves of an answer."""

from __future__ import annotations

import pytest

from cloudspot_gcp_sandbox.apierror import ApiError
from cloudspot_gcp_sandbox.partial import select

OBJECT = {"name": "x", "size": "3", "owner": {"entity": "a", "id": "b"}}
VALUE = {"items": [OBJECT], "nextPageToken": "t"}


@pytest.mark.parametrize(
    ("fields", "items"),
    [
        ("items(name,size)", [{"name": "x", "size": "3"}]),
        ("items/name,items/size", [{"name": "x", "size": "3"}]),  # as gcloud asks
        ("items(owner/id),items/owner/entity", [{"owner": OBJECT["owner"]}]),
        ("items/name,items", [OBJECT]),
        ("items,items/name", [OBJECT]),
        ("items/*", [OBJECT]),
    ],
)
def test_a_field_is_left_by_whichever_way_it_is_named(fields, items):
    assert select(VALUE, fields) == {"items": items}
    assert select(VALUE, f"prefixes, {fields},nextPageToken") == {"items": items, "nextPageToken": "t"}


@pytest.mark.parametrize("fields", ["", "items(", "items/", "items)", "/items", "a,,b", "items(name"])
def test_what_cannot_be_read_is_refused(fields):
    with pytest.raises(ApiError, match="Invalid field selection"):
        select(VALUE, fields)
