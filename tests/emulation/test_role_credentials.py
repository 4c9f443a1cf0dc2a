"""The credentials of emulated roles, as a machine's metadata service shows them."""

from datetime import datetime, timedelta, timezone

import pytest

from cloudspot.emulation.role_credentials import RoleKeys, ShownCredentials

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)


class Keys(RoleKeys):
    prefix = "TEMP"


@pytest.mark.parametrize(
    ("facts", "lifetime", "shown_for"),
    [
        ({}, timedelta(hours=6), timedelta(hours=5, minutes=55)),
        ({"credential-seconds": 8}, timedelta(seconds=8), timedelta(seconds=4)),
    ],
)
def test_new_credentials_come_before_the_old_expire_and_short_lived_ones_are_shown_for_half_their_life(
    facts, lifetime, shown_for
):
    clock = [NOON]
    facts = {"instance-id": "i-1", "role-seed": "seed", **facts}
    shown = ShownCredentials(Keys, facts, lead=timedelta(minutes=5), now=lambda: clock[0])
    first = shown.current()
    assert (first.expires_at, shown.updated_at) == (NOON + lifetime, NOON)
    clock[0] += shown_for
    assert shown.current() == first
    clock[0] += timedelta(seconds=1)
    second = shown.current()
    assert second.access_key != first.access_key
    assert shown.updated_at == clock[0]
