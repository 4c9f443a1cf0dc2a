import random
import uuid

import msgspec
import pytest
from support.worlds.simcloud import SimCloud, SimProvider
from support.worlds.simulation import World

from cloudspot.controller.actions import OpenLaunch
from cloudspot.controller.decide import BOOT_LIMIT_SECONDS
from cloudspot.controller.launchrequest import (
    MAX_LIFE_SECONDS,
    launch_token,
    life_seconds,
    plan,
    render_launch,
)
from cloudspot.errors import SpecError
from cloudspot.jobfile.spec import ResourcesSpec
from cloudspot.jobstore.jobs.submission import hash_of
from cloudspot.jobstore.layout import codec
from cloudspot.jobstore.nodes.delivering import DELIVERY_GRACE_SECONDS


class Provider(SimProvider):
    """Keeps the groups that it is asked to render."""

    def __init__(self):
        world = World(random.Random(0), calm_at=0.0)
        super().__init__(SimCloud(world, max_nodes=1, node=None, is_rightful=None))
        self.groups = []
        real = self._cloud.render
        self._cloud.render = lambda group: self.groups.append(group) or real(group)


def render(spec, provider, submission, store_url, **changes):
    fields = {"num_nodes": spec.nodes.max, "min_nodes": spec.nodes.min, **changes}
    run_seconds = fields.pop("run_seconds", 0.0)
    return render_launch(
        OpenLaunch(number=1, why="first", **fields),
        spec,
        provider,
        submission,
        store_url,
        submission_sha256=hash_of(codec.encode(submission)),
        label="a store",
        decided_at=submission.at,
        run_seconds=run_seconds,
    )


def test_the_dry_run_holds_the_very_request_of_each_offer_in_order(records):
    submission = records.history().submission
    planned = plan(records.spec(), Provider(), submission, "memory://x", label="a store")
    assert [(one.offer.zone, one.offer.market.value) for one in planned] == [
        ("a", "spot"),
        ("b", "spot"),
        ("a", "on-demand"),
    ]
    for one in planned:
        assert one.request == render(
            records.spec(), Provider(), submission, "memory://x", launch=1, offer=one.offer
        )


def test_a_job_for_which_nothing_can_be_bought_is_refused_before_it_is_submitted(records):
    provider = Provider()
    provider._cloud.offered = lambda resources: ()
    with pytest.raises(SpecError, match=r"resources: provider 'sim' has no offer that fits"):
        plan(records.spec(), provider, records.history().submission, "memory://x", label="a store")


@pytest.mark.parametrize(
    ("sold", "said"),
    [
        (
            False,
            "resources.accelerator: provider 'sim' has no machine with 'Trainium' that cloudspot can buy; name another accelerator",
        ),
        (True, "resources: provider 'sim' has no offer that fits"),
    ],
)
def test_an_accelerator_that_nobody_sells_is_told_as_such(records, sold, said):
    """To ask for less of what is not sold at all does not help."""
    provider = Provider()
    offered = provider._cloud.offered
    provider._cloud.offered = lambda asked: offered(asked) if sold and not asked.cpus else ()
    wanted = ResourcesSpec(accelerator="Trainium", cpus=4)
    spec = msgspec.structs.replace(records.spec(), resources=wanted)
    with pytest.raises(SpecError) as error:
        plan(spec, provider, records.history().submission, "memory://x", label="a store")
    assert str(error.value).startswith(said)


def test_a_launch_says_how_many_nodes_it_asks_for_and_boots_the_agent(records):
    provider = Provider()
    spec = records.spec(nodes={"min": 2, "max": 4}, resources={"disk": "50GiB"})
    submission = records.history().submission
    counts = {"num_nodes": 3, "min_nodes": 1}
    render(spec, provider, submission, "memory://x", launch=7, offer=records.offer(), **counts)
    (group,) = provider.groups
    assert (group.num_nodes, group.min_nodes, group.job_nodes) == (3, 1, 4)
    assert (group.launch, group.store_url) == (7, "a store")
    assert group.resources.disk_bytes == 50 << 30
    assert group.decided_at == submission.at
    assert "export CLOUDSPOT_JOB=digits-1\n" in group.user_data
    assert "export CLOUDSPOT_LAUNCH=7\n" in group.user_data
    assert "export CLOUDSPOT_STORE=memory://x\n" in group.user_data


def test_a_limit_in_another_currency_than_the_offers_is_refused(records):
    spec = records.spec(limits={"max_cost": "5 CNY"})
    with pytest.raises(SpecError, match=r"limits.max_cost is in CNY, but provider 'sim' charges USD"):
        render(spec, Provider(), records.history().submission, "x", launch=1, offer=records.offer())


def test_a_machine_lives_as_long_as_is_left_of_the_runtime_and_some_grace(records):
    grace = BOOT_LIMIT_SECONDS + DELIVERY_GRACE_SECONDS
    assert life_seconds(records.spec(), 0.0) == MAX_LIFE_SECONDS
    limited = records.spec(limits={"max_runtime": "1h"})
    assert life_seconds(limited, 600.0) == 3000.0 + grace
    assert life_seconds(limited, 9000.0) == grace
    assert life_seconds(records.spec(limits={"max_runtime": "60d"}), 0.0) == MAX_LIFE_SECONDS


def test_the_token_of_a_launch_is_a_uuid_that_every_controller_finds_and_no_other_job_has(records):
    submission = records.history().submission
    token = launch_token(submission, 1)
    assert uuid.UUID(token).version == 4
    assert token == launch_token(submission, 1)
    others = {
        launch_token(submission, 2),
        launch_token(msgspec.structs.replace(submission, job_id="digits-2"), 1),
        launch_token(msgspec.structs.replace(submission, writer="another store's"), 1),
    }
    assert len(others | {token}) == 4


def test_a_group_has_the_jobs_labels_and_says_whether_its_nodes_drive(records):
    submission = records.history().submission
    for drive in (False, True):
        provider = Provider()
        spec = records.spec(labels={"team": "nlp"}, nodes={"min": 1, "max": 1, "drive": drive})
        render(spec, provider, submission, "memory://x", launch=1, offer=records.offer())
        (group,) = provider.groups
        assert (group.labels, group.drives) == ({"team": "nlp"}, drive)


def test_a_stored_request_says_which_plugin_made_it(records, monkeypatch):
    submission, offer = records.history().submission, records.offer()
    assert render(records.spec(), Provider(), submission, "memory://x", launch=1, offer=offer).made_by == ""
    monkeypatch.setattr(Provider, "made_by", "cloudspot-sim 1.2")
    request = render(records.spec(), Provider(), submission, "memory://x", launch=1, offer=offer)
    assert request.made_by == "cloudspot-sim 1.2"
