"""The summary of a job in a few lines."""

from types import SimpleNamespace

import pytest
from support.stores.memorystore import InMemoryStore

from cloudspot.cli.screen.jobsummary import (
    _inexact,
    _next_text,
    _nodes_text,
    echo_last_lines,
    headline_fields,
    steps_lost_text,
    weights_text,
)
from cloudspot.jobstore.layout import keys


def test_steps_lost_are_told_as_exactly_as_they_are_known():
    told = [
        steps_lost_text({"steps_lost": steps, "steps_lost_is_exact": is_exact})
        for steps, is_exact in ((7, True), (0, True), (7, False), (0, False), (None, False))
    ]
    assert told == ["7", "0", "at least 7", "unknown", "unknown"]


@pytest.mark.parametrize(
    ("sha256", "are_sharded", "text"),
    [
        ("ab" * 32, False, "sha256 " + "ab" * 32),
        (None, True, "no hash, because they are sharded over the ranks"),
        (None, False, ""),
    ],
)
def test_the_line_of_the_weights_says_why_there_is_no_hash(sha256, are_sharded, text):
    assert weights_text({"weights_sha256": sha256, "are_weights_sharded": are_sharded}) == text


@pytest.mark.parametrize(
    ("state", "commit", "text"),
    [
        ("succeeded", {}, "get its weights: cloudspot checkpoints export x --to weights.safetensors"),
        ("succeeded", None, "see its log: cloudspot logs x"),
        (
            "failed",
            {},
            (
                "see why: cloudspot logs x; continue with changed code: "
                "cloudspot fork x --code .; or unchanged: cloudspot resume x"
            ),
        ),
        (
            "failed",
            None,
            (
                "see why: cloudspot logs x; continue with changed code: "
                "cloudspot run; or unchanged: cloudspot resume x"
            ),
        ),
        ("stopped", {}, "continue it: cloudspot resume x"),
        ("suspended", {}, "continue it: cloudspot resume x"),
        ("waiting", {}, "follow and drive it: cloudspot attach x"),
    ],
)
def test_the_next_command_fits_the_state(state, commit, text):
    spec = SimpleNamespace(checkpoint=SimpleNamespace(directory=None))
    job = SimpleNamespace(command=lambda name: f"cloudspot {name} x", spec=spec)
    assert _next_text(job, {"state": state, "last_commit": commit}) == text


@pytest.mark.parametrize(
    ("state", "text"), [("running", "1 of 2, 1 on the way, 2 so far"), ("succeeded", "2 in all")]
)
def test_nothing_is_on_its_way_to_a_finished_job(state, text):
    nodes = [{"name": "1.0", "ended": None}, {"name": "2.0", "ended": None}]
    value = {"state": state, "nodes": nodes, "nodes_max": 2, "generations": [{"nodes": ["1.0"]}]}
    assert _nodes_text(value) == text


@pytest.mark.parametrize(
    ("outputs", "why"),
    [
        (None, "the training wrote no file to keep below its working directory"),
        (["out"], "the training wrote no file that matches run.outputs"),
        ([], "run.outputs is empty"),
    ],
)
def test_a_success_that_kept_nothing_says_so(outputs, why, capsys):
    store = InMemoryStore()
    job = SimpleNamespace(id="x", store=store, spec=SimpleNamespace(run=SimpleNamespace(outputs=outputs)))
    echo_last_lines(job, {"state": "succeeded", "last_commit": {}})
    assert capsys.readouterr().out == ""
    echo_last_lines(job, {"state": "succeeded", "last_commit": None})
    told = f"\nthis job has kept nothing: it has no checkpoint, and {why}\n"
    assert capsys.readouterr().out == told
    store.put(keys.output("x", "out/model.bin"), b"x")
    echo_last_lines(job, {"state": "succeeded", "last_commit": None})
    assert capsys.readouterr().out == ""


def test_a_package_that_the_machines_lack_is_told_with_the_line_that_installs_it(capsys):
    tail = ["Traceback", "ModuleNotFoundError: No module named 'sklearn.svm'; 'sklearn' is not a package"]
    node = {"name": "1.0", "launch": 1, "outcome": "failed", "exit_code": 1, "log_tail": tail}
    job = SimpleNamespace(command=lambda name: f"cloudspot {name} x")
    value = {"state": "failed", "last_commit": None, "nodes": [node], "generations": [], "launches": []}
    value["launches"] = [{"launch": 1}]
    echo_last_lines(job, value)
    said = " ".join(capsys.readouterr().out.split())
    assert "the machines lack sklearn: install its package in run.setup" in said


@pytest.mark.parametrize("counts_steps", [True, False])
def test_what_a_script_without_a_session_counts_is_called_saves(counts_steps):
    """Three saves of one file were "steps 3", though the script had made 900."""
    value = {
        "steps_lost": None,
        "steps_lost_is_exact": False,
        "step": 3,
        "steps_total": None,
        "counts_steps": counts_steps,
        "time": {"total": 1.0},
        "state": "stopped",
        "kept": None,
        "cost": {"spent": 0.0, "on_demand_equivalent": 0.0, "currency": "USD", "others": {}},
    }
    job = SimpleNamespace(command=lambda name: f"cloudspot {name} x")
    first = headline_fields(job, value)[0]
    assert first == (
        ("steps", "3, lost unknown") if counts_steps else ("last save", "3; steps lost: unknown")
    )


def test_a_checkpoint_of_survivors_says_what_it_lacks():
    exact = {"cause": "lost", "lost": [1], "kept": [1], "is_exact": True}
    assert _inexact(None) == _inexact(exact) == ""
    partly = exact | {"lost": [0, 1], "is_exact": False}
    assert _inexact(partly) == ", without the state that only rank 0 had, such as its random generators"
