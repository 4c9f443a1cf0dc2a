"""Each sentence of README is held by tests, was measured, or says what has not been tried."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()

NOT_TRIED = "not tried"
"""The sentence says what nobody has tested, so no test can hold it."""

MAIN_JOB = "tests/e2e/test_main_job.py::test_digits_is_reclaimed_resumed_and_finished"
IN_CLOUDS = "tests/e2e/test_sandboxes.py::test_the_digits_example_makes_the_weights_that_it_makes_locally"
DRIVEN_ALONE = "tests/e2e/test_main_job.py::test_detached_job_is_finished_by_reconcile_alone"
LINKS = "tests/test_docs.py::test_the_links_of_a_page_lead_somewhere"
WHEELS = "release/try_wheels.py"

HELD_BY = {
    "cloudspot trains PyTorch models": MAIN_JOB,
    "You write one job file and one DDP script": MAIN_JOB,
    "When the cloud gives notice": MAIN_JOB,
    "It needs no server": DRIVEN_ALONE,
    "It runs on your own computer": IN_CLOUDS,
    "The three clouds have been tested only": IN_CLOUDS,
    "On Kubernetes it has been tested": "tests/e2e/test_kubernetes.py::test_a_drained_node_hands_its_training_on_and_no_step_is_lost",
    "Set up in a fresh clone": f"{MAIN_JOB}, {WHEELS}",
    "Set up and run the tests": "tests/test_project.py::test_the_ci_runs_the_second_block_of_the_readme_and_then_the_full_tests, .ci/run",
    "cloudspot needs Python 3.10": f"tests/test_release.py::test_the_pythons_are_the_same_everywhere, {WHEELS}",
    "On Linux, pip installs torch with CUDA": "tests/test_project.py::test_torch_comes_by_an_extra_only",
    "macOS has not been tested yet": NOT_TRIED,
    "![a job in the terminal": "tests/cli/test_screens.py",
    "`cloudspot run` buys two machines": MAIN_JOB,
    "Halfway, one gets a notice": MAIN_JOB,
    "The training processes of both machines agree": "tests/train/test_torchrun.py::test_two_ranks_drain_at_one_step_and_resume_bit_equal",
    "A third machine takes the place": MAIN_JOB,
    "The summary reports 3 nodes": MAIN_JOB,
    "The weights are identical": "tests/e2e/test_exactness.py::test_two_nodes_of_which_one_has_a_notice_change_no_bit",
    "The jobs are kept in": "tests/local/test_provider.py::test_the_default_store_lies_beside_the_machines, tests/cli/commands/test_rm.py::test_a_job_that_is_over_goes_whole",
    "To try something harder": "tests/e2e/test_controllers.py::test_a_preempted_machine_is_replaced, tests/cli/following/test_follow.py::test_attaching_to_an_ended_job_tells_its_story_and_ends_like_it",
    "The machines of `local` cost nothing": "tests/test_docs.py::test_what_is_generated_is_up_to_date",
    "The session restores the objects": "tests/train/test_torchrun.py::test_an_interval_save_of_two_ranks_resumes_bit_equal_after_a_kill",
    "The same script runs without cloudspot": "tests/train/test_session.py::test_without_an_agent_a_session_counts_steps_and_starts_nothing",
    "A script that writes its own checkpoint directories": "tests/e2e/test_framework_examples.py::test_a_training_that_knows_nothing_of_cloudspot_outlives_its_reclaims",
    "With [two to four more lines]": "tests/e2e/test_framework_examples.py::test_an_example_with_the_callback_loses_no_step_and_no_bit",
    "There are also examples of": "tests/e2e/test_tinygpt.py::test_tinygpt_reclaimed_in_the_middle_ends_with_the_same_weights, tests/e2e/test_fsdp.py::test_a_reclaim_of_a_sharded_job_changes_no_bit",
    "`cloudspot init` writes": "tests/cli/commands/test_init.py::test_a_script_that_is_there_is_named_and_left_as_it_is, tests/cli/commands/test_plan.py::test_plan_prints_what_a_dry_run_prints",
    "[docs/first-job.md](docs/first-job.md) leads": "tests/e2e/test_strangers_path.py::test_a_script_of_ones_own_is_made_durable_reclaimed_and_its_weights_brought_home",
    "The second line runs": f"{IN_CLOUDS}, tests/emulation/test_machines.py::test_the_metadata_answer_at_the_real_addresses_and_names, {WHEELS}",
    "The third line runs the same job on the real AWS": NOT_TRIED,
    "No job has run on a real cloud yet": NOT_TRIED,
    "The job file is the same": IN_CLOUDS,
    "Alibaba Cloud's [default image]": "tests/plugins/aliyun/ecs/test_offers.py::test_the_bare_default_image_is_warned_of",
    "Your own computer need not stay on": "tests/e2e/test_unattended.py::test_a_function_alone_brings_a_job_through_two_reclaims, tests/e2e/test_unattended.py::test_the_dying_nodes_alone_bring_a_job_through_two_reclaims",
    "Commands that read jobs take": "tests/cli/test_cli_docs.py::test_the_json_of_every_command_that_prints_some_is_looked_at",
    "[docs/cli.md](docs/cli.md) describes": "tests/cli/test_cli_docs.py::test_every_json_key_is_documented, tests/test_docs.py::test_what_is_generated_is_up_to_date",
    "A job's history is a journal": "tests/local/test_filestore.py::test_of_two_create_only_uploads_the_second_to_commit_is_refused",
    "Any number of controllers": "tests/e2e/test_controllers.py::test_three_controllers_launch_no_machine_twice_and_tell_each_event_once",
    "An agent on each machine": MAIN_JOB,
    "A checkpoint exists once": "tests/jobstore/checkpoints/test_fetching.py::test_a_flipped_bit_is_found_by_verify_and_by_fetch_which_leaves_no_table",
    "A damaged checkpoint is skipped": "tests/agent/delivery/test_on_demand_fetch.py::test_a_chunk_that_is_found_damaged_makes_all_nodes_take_an_older_checkpoint",
    "Nothing that comes from the store": "tests/jobstore/checkpoints/test_fetching.py::test_nothing_in_a_checkpoint_is_ever_unpickled",
    "If a job has several machines": "tests/e2e/test_replacement.py::test_of_four_nodes_one_is_taken_with_a_notice_and_three_stay",
    "The others go on without it": "tests/e2e/test_replacement.py::test_of_four_nodes_one_is_taken_with_a_notice_and_three_stay",
    "At a notice, the replacement boots": "tests/controller/supply/test_needs.py::test_a_node_with_a_notice_is_replaced_while_it_still_trains",
    "A job grows back": "tests/e2e/test_replacement.py::test_a_job_whose_lost_node_cannot_be_had_again_goes_on_smaller_and_grows_back, tests/e2e/test_move.py::test_a_job_moves_to_on_demand_in_another_zone_without_a_step_lost",
    "If a machine or a process dies": "tests/e2e/test_silent_deaths.py::test_a_machine_that_dies_without_a_word_costs_no_step, tests/e2e/test_silent_deaths.py::test_a_process_that_dies_alone_costs_no_step",
    "This needs a session": "tests/e2e/test_silent_deaths.py::test_state_that_only_a_lost_rank_had_is_said_to_be_missing",
    "The weights are those of an undisturbed": "tests/e2e/test_silent_deaths.py::test_what_a_lost_rank_alone_had_was_handed_over",
    "If a job's only machine falls silent": "tests/controller/supply/test_needs.py::test_a_silent_node_that_nobody_has_left_out_is_not_replaced",
    "So a job never trains twice": "tests/e2e/test_controllers.py::test_three_controllers_launch_no_machine_twice_and_tell_each_event_once",
    "Every machine ends itself": "tests/local/test_supervisor.py::test_a_machine_without_a_supervisor_ends_itself_by_shutdown, tests/boot/test_script.py::test_a_machine_that_boots_a_second_time_ends_itself_and_starts_no_agent",
    "**The real clouds.**": NOT_TRIED,
    "[docs/first-real-run.md](docs/first-real-run.md) lists": NOT_TRIED,
    "The [interfaces](cloudspot/interfaces.py) may": LINKS,
    "It refuses the older FSDP": "tests/train/state/test_checkpoint.py::test_what_cannot_be_tracked_is_refused_by_name",
    "**Some ways to shard.**": "tests/e2e/test_fsdp.py::test_a_reclaim_of_a_sharded_job_changes_no_bit, tests/train/test_layouts.py",
    "**Training on macOS.**": NOT_TRIED,
    "[CONTRIBUTING.md](CONTRIBUTING.md) explains": LINKS,
    "`tox -e docs` builds": "tests/test_site.py::test_the_site_builds_without_a_warning_or_a_dead_link_and_has_all_that_the_pages_name",
    "MIT licence.": "tests/test_release.py::test_a_wheel_that_lacks_something_is_refused",
}
"""By its first words, whatever holds a sentence: tests, and scripts that measure or try it."""


def sentences(text):
    """Return the sentences of the page's prose."""
    left_out = r"^```[\s\S]*?^```\n|^<!-- generated[\s\S]*?<!-- end -->\n|^\|.*\n|^#.*\n"
    prose = re.sub(left_out, "\n", text, flags=re.MULTILINE)
    joined = [
        " ".join(part.strip().removeprefix("- ").split()) for part in re.split(r"\n\s*\n|\n(?=- )", prose)
    ]
    return [one for part in joined for one in re.split(r"(?<=[.:])(?<!\.\*\*) (?=[A-Zm`\[])", part) if one]


SENTENCES = sentences(README)


@pytest.mark.parametrize("sentence", SENTENCES, ids=lambda sentence: sentence[:40])
def test_each_sentence_is_held_by_something(sentence):
    assert [start for start in HELD_BY if sentence.startswith(start)] != [], sentence


def test_nothing_is_held_that_the_page_does_not_say():
    assert [start for start in HELD_BY if not any(one.startswith(start) for one in SENTENCES)] == []


@pytest.mark.parametrize("start", [start for start, held in HELD_BY.items() if held is not NOT_TRIED])
def test_what_holds_a_sentence_exists(start):
    for one in HELD_BY[start].split(", "):
        path, _, test = one.partition("::")
        assert (ROOT / path).exists(), one
        assert not test or f"def {test}(" in (ROOT / path).read_text(), one


def test_the_page_has_two_screens_before_its_tables():
    """A screen is some fifty lines of a hundred characters."""
    before = README[: README.index("\n| ")]
    assert len(before.splitlines()) <= 100
    assert max(map(len, before.splitlines())) <= 125
