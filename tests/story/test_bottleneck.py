"""What limits a training."""

import pytest

from cloudspot.jobstore.layout.records import Utilization
from cloudspot.story.bottleneck import bottleneck
from cloudspot.story.report import show_json


@pytest.fixture
def trained(records):
    """``trained({rank: figures}, stall=...)``: a history whose nodes have measured these."""

    def make(figures, *, stall=0.0, commits=()):
        beats = {
            rank: records.heartbeat(
                instance_id=f"i-1-{rank}",
                stall_seconds=stall,
                utilization=Utilization(at=records.at(90), seconds=30.0, step=9, **one),
            )
            for rank, one in figures.items()
        }
        launch = records.launch(intent=records.intent(num_nodes=max(1, len(figures))), heartbeats=beats)
        generation = records.generation(1, ranks=tuple(figures) or (0,))
        made = [records.commit(step=10 * n, generation=1, at=at) for n, at in enumerate(commits, start=1)]
        return records.history(launch, generations=(generation,), commits=tuple(made))

    return make


@pytest.mark.parametrize(
    ("figures", "kind", "said"),
    [
        ({"gpus": (0.3,), "data_wait": 0.4}, "data-loader", "data loader: 40% of the time goes to waiting"),
        ({"gpus": (0.97, 0.9), "cpu": 0.99}, "gpu", "GPU: busy 97% of the time"),
        ({"gpus": (0.5,), "network": 0.9}, "network", "network: 90% of the link is used"),
        ({"cpu": 0.95, "data_wait": 0.01}, "cpu", "CPU: all cores busy 95% of the time"),
        ({"gpus": (0.4,), "cpu": 0.2}, "none", "the busiest resource is in use 40% of the time"),
        ({}, "none", "in use 0% of the time"),
    ],
)
def test_one_line_says_what_is_slow_and_what_to_try(trained, figures, kind, said):
    found = bottleneck(trained({0: figures}))
    assert found.kind == kind
    assert said in found.text
    assert "; try " in found.text or "; more speed needs" in found.text


def test_the_slowest_node_counts(trained):
    assert bottleneck(trained({0: {"data_wait": 0.0}, 1: {"data_wait": 0.5}})).kind == "data-loader"


def test_saves_that_take_more_of_the_time_than_they_may_are_named(trained):
    often = trained({0: {"gpus": (0.9,)}}, stall=3.0, commits=(20, 50))
    assert bottleneck(often).text.startswith("saves: 10% of the time goes to saving; try a longer")
    seldom = trained({0: {"gpus": (0.9,)}}, stall=3.0, commits=(20, 320))
    assert bottleneck(seldom).kind == "gpu"


def test_nothing_is_said_before_anything_was_measured(records, trained):
    launch = records.launch(heartbeats={0: records.heartbeat()})
    history = records.history(launch, generations=(records.generation(1),))
    assert bottleneck(history) is None
    shown = show_json(history, records.at(100))
    assert (shown["limited_by"], shown["utilization"]) == (None, [])


def test_show_has_the_figures_by_node(records, trained):
    shown = show_json(trained({0: {"cpu": 0.5}, 1: {"cpu": 0.9, "gpus": (0.1,)}}), records.at(100))
    assert [(one["node"], one["cpu"], tuple(one["gpus"])) for one in shown["utilization"]] == [
        ("1.0", 0.5, ()),
        ("1.1", 0.9, (0.1,)),
    ]
    assert shown["limited_by"]["kind"] == "cpu"
