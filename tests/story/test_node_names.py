"""Names of many nodes in few words."""

import pytest

from cloudspot.jobstore.layout.records import Seat
from cloudspot.story.node_names import named, parse_seat, ranges


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ("", ""),
        ("1.0", "1.0"),
        ("1.0 1.1 1.2 1.3", "1.0-3"),
        ("12.0 12.2 12.3 12.5", "12.0,2-3,5"),
        ("1.1 1.2 3.0 4.1 4.2", "1.1-2 3.0 4.1-2"),
    ],
)
def test_many_nodes_are_told_as_ranges(nodes, text):
    assert ranges(map(parse_seat, nodes.split())) == text


def test_one_node_and_several_are_called_so():
    assert named([Seat(1, 0)]) == "node 1.0"
    assert named([Seat(1, 0), Seat(2, 0)]) == "nodes 1.0 and 2.0"


@pytest.mark.parametrize("name", ["", "1", "1.", ".0", "0.1", "1.0.0", "1.x", "1.\u0661", "-1.0"])
def test_what_is_not_a_nodes_name_is_refused(name):
    with pytest.raises(ValueError, match="is not a node's name; expected one such as"):
        parse_seat(name)
