"""What a policy may know."""

from __future__ import annotations

import numpy as np
import pytest

from cloudspot.market.situation import compared


def test_what_was_seen_is_compared_with_what_is_usual_and_drawn_to_one():
    seen, usual = np.array([0.0, 8.0, 8.0, 800.0]), np.array([0.0, 8.0, 0.0, 100.0])
    assert compared(seen, usual) == pytest.approx([1.0, 1.0, 2.0, 808 / 108])
    assert compared(seen, usual, doubt=2.0) == pytest.approx([1.0, 1.0, 5.0, 802 / 102])
