"""What saves cost a training, as the nodes say it."""

import pytest

from cloudspot.jobstore.layout.records import SaveCost
from cloudspot.story.report import show_json
from cloudspot.story.save_costs import save_cost, save_cost_text


@pytest.fixture
def saved(records):
    """``saved(cost, ...)``: a history of one generation, whose nodes say so."""

    def make(*costs):
        beats = {
            rank: records.heartbeat(instance_id=f"i-1-{rank}", save_cost=cost)
            for rank, cost in enumerate(costs)
        }
        launch = records.launch(intent=records.intent(num_nodes=max(1, len(costs))), heartbeats=beats)
        return records.history(launch, generations=(records.generation(1, ranks=tuple(range(len(costs)))),))

    return make


def test_of_several_nodes_the_one_counts_where_a_save_costs_most(saved):
    cheap = SaveCost(way="overlapped", copy_seconds=0.052, lost_seconds=0.0041)
    dear = SaveCost(way="boundary", copy_seconds=0.05, lost_seconds=0.06)
    assert save_cost(saved(cheap, dear, None)) == dear
    assert save_cost(saved(cheap)) == cheap
    assert save_cost(saved(None)) is None


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (
            SaveCost(way="overlapped", copy_seconds=0.052, lost_seconds=0.0041),
            "copied next to the steps; a save costs 4 ms of training, a copy takes 52 ms",
        ),
        (SaveCost(way="boundary", copy_seconds=1.24), "copied between two steps; a copy takes 1.2 s"),
        (
            SaveCost(
                way="overlapped", copy_seconds=0.05, lost_seconds=-0.02
            ),  # within the noise of the steps
            "copied next to the steps; a save costs 0 ms of training, a copy takes 50 ms",
        ),
    ],
)
def test_it_is_said_in_a_line(saved, records, cost, text):
    assert save_cost_text(cost) == text
    shown = show_json(saved(cost), records.at(100))["saves"]
    assert shown == {
        "way": cost.way,
        "copy_seconds": cost.copy_seconds,
        "lost_seconds": cost.lost_seconds,
        "text": text,
    }


def test_a_job_that_has_not_saved_says_nothing(saved, records):
    assert show_json(saved(None), records.at(100))["saves"] is None
