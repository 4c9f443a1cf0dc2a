"""The summary of a job in a few lines."""

from cloudspot.cli.screen.jobsummary import steps_lost_text


def test_steps_lost_are_told_as_exactly_as_they_are_known():
    told = [
        steps_lost_text({"steps_lost": steps, "steps_lost_is_exact": is_exact})
        for steps, is_exact in ((7, True), (0, False), (None, False))
    ]
    assert told == ["7", "at least 0", "unknown"]
