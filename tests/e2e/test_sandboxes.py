"""One job in every emulated cloud: nothing in the agent, the trainer or the SDKs knows that it is one.

The same job file survives a reclaim on each and ends with the weights that it ends with locally. A new cloud
joins by its name here, and by a module ``account_NAME``: ``SETS``, the options without which its test would
wait; ``look``, what its owner sees when the job is over; ``check``, what must be true of that.
"""

from __future__ import annotations

import importlib
import re
import shlex

import pytest
from support.clouds.sandboxed import DOCS, run_sandboxed, weights_of
from support.jobs.acting_user import EXAMPLES, JOBS
from support.jobs.isolated_machines import needs_isolated_machines

pytestmark = [
    needs_isolated_machines,
    pytest.mark.timeout(900),
]

CLOUDS = ("aws", "gcp", "aliyun")
TINY = JOBS / "tiny" / "job.toml"
SETS = ('run.env.TINY_STEP_SECONDS="0.1"', 'run.env.TINY_EPOCHS="10"')


@pytest.mark.parametrize(
    ("cloud", "num_nodes", "reclaimed"),
    [
        pytest.param("aws", 1, 0, marks=pytest.mark.costly),
        *(pytest.param(cloud, 1, 0, marks=pytest.mark.full) for cloud in ("gcp", "aliyun")),
        pytest.param("aws", 2, 0, marks=pytest.mark.full),
        *(pytest.param(cloud, 2, 1, marks=pytest.mark.soak) for cloud in CLOUDS),
        *(pytest.param(cloud, 2, 0, marks=pytest.mark.soak) for cloud in ("gcp", "aliyun")),
    ],
)
def test_a_job_survives_a_reclaim_and_makes_the_weights_that_it_makes_locally(
    user, undisturbed, cloud, num_nodes, reclaimed
):
    account = importlib.import_module(f"support.clouds.account_{cloud}")
    sets = (f"nodes={num_nodes}", *SETS)
    words = [word for one in (*sets, *account.SETS) for word in ("--set", one)]
    # A minute's notice: a longer one would be partly trained through.
    reclaim = f"rank={reclaimed},after_share=0.4,notice=60"
    seen = run_sandboxed(user, cloud, TINY, arguments=words, options=["--reclaim", reclaim])
    assert seen.show["state"] == "succeeded"
    kept = [f"1.{rank}" for rank in range(num_nodes) if rank != reclaimed]
    trained = [one["nodes"] for one in seen.show["generations"] if not one["is_holding"]]
    assert trained == [[f"1.{rank}" for rank in range(num_nodes)], [*kept, "2.0"]]
    assert len(seen.show["notices"]) == 1
    assert weights_of(seen.show) == weights_of(undisturbed(sets))
    assert len(seen.log) > seen.show["steps_total"]  # the first rank prints a line a step
    account.check(seen)


@pytest.mark.soak
def test_machines_that_all_have_the_same_index_share_the_seats_out(user):
    words = [word for one in ("nodes=3", *SETS) for word in ("--set", one)]
    plan = ["--reclaim", "none", "--contrary", "same-launch-index"]
    seen = run_sandboxed(user, "aws", TINY, arguments=words, options=plan)
    assert seen.show["state"] == "succeeded"
    assert [one["nodes"] for one in seen.show["generations"]] == [["1.0", "1.1", "1.2"]]


def documented(cloud: str) -> list[str]:
    """Return the words of the command that the cloud's page has in its sandbox."""
    page = (DOCS / f"{cloud}.md").read_text().replace("\\\n", " ")
    (line,) = re.findall(rf"^\S*cloudspot sandbox {cloud} -- (.*run.*)$", page, re.MULTILINE)
    return shlex.split(line)


@pytest.mark.soak
@pytest.mark.parametrize("cloud", CLOUDS)
def test_the_digits_example_makes_the_weights_that_it_makes_locally(user, cloud):
    """By the command of the cloud's own page."""
    digits = EXAMPLES / "digits" / "job.toml"
    user.cloudspot("run", str(digits), "--name", "local", timeout=600)
    words = documented(cloud)
    assert words[:4] == [".venv/bin/cloudspot", "run", "--provider", cloud]
    assert words[-1] == "examples/digits/job.toml"
    seen = run_sandboxed(user, cloud, digits, arguments=words[4:-1])
    assert (seen.show["state"], len(seen.show["notices"])) == ("succeeded", 1)
    assert weights_of(seen.show) == weights_of(user.show("local"))


@pytest.mark.soak
@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_script_that_knows_nothing_of_cloudspot_goes_on_from_its_own_newest_checkpoint(user, cloud):
    # Slow enough that a machine under load has a checkpoint by then that has not changed for ten seconds.
    words = ["--set", 'run.env.STEP_SECONDS="0.15"']
    plan = ["--reclaim", "launch=1,after_seconds=60,notice=20"]
    unmodified = EXAMPLES / "unmodified" / "job.toml"
    seen = run_sandboxed(user, cloud, unmodified, arguments=[*words, *documented(cloud)[4:-1]], options=plan)
    assert (seen.show["state"], len(seen.show["nodes"])) == ("succeeded", 2)
    text = "\n".join(seen.log)
    (resumed,) = re.findall(r"resuming from output/checkpoint-(\d+) at step (\d+)", text)
    assert resumed[0] == resumed[1]
    step = int(resumed[0])
    first, second = seen.show["generations"]
    assert (first["restored"], second["restored"]) == (None, {"generation": 1, "step": step})
    assert step % 50 == 0
    after = text[text.index("resuming from") :]
    assert [int(one) for one in re.findall(r"step (\d+)  loss", after)] == list(range(step + 50, 601, 50))
    assert "done after 600 steps" in after


@pytest.mark.soak
@pytest.mark.parametrize(("cloud", "notice_seconds"), [("aws", 100), ("aliyun", 150)])
def test_a_long_notice_is_trained_through_until_the_replacement_is_ready(user, cloud, notice_seconds):
    sets = ("nodes=2", 'run.env.TINY_STEP_SECONDS="0.3"', 'run.env.TINY_EPOCHS="60"')
    words = [word for one in sets for word in ("--set", one)]
    plan = ["--reclaim", f"rank=1,after_steps=40,notice={notice_seconds}"]
    seen = run_sandboxed(user, cloud, TINY, arguments=words, options=plan)
    (notice,) = seen.show["notices"]
    assert (seen.show["state"], seen.show["steps_lost"]) == ("succeeded", 0)
    first, second = seen.show["generations"]
    assert (first["nodes"], second["nodes"]) == (["1.0", "1.1"], ["1.0", "2.0"])
    (successor,) = [one for one in seen.show["nodes"] if one["name"] == "2.0"]
    assert notice["at"] < successor["claimed"] < first["training_until"] < notice["deadline"]
    # A step takes 0.3 s at the least; the machine boots meanwhile.
    assert 0 < 0.3 * (notice["commit"]["step"] - notice["step"]) <= notice_seconds - 60
