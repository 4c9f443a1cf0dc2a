"""``--plot`` of ``show`` and ``compare``."""

import importlib.util
import json
import math
import re

import pytest
from support.records.jobclock import at

from cloudspot.cli.charts import drawing, plots
from cloudspot.errors import TransientError
from cloudspot.jobstore.logs.objectlog import ObjectStoreLogSink


def log_metrics(jobs, job_id, stream, steps, *, minutes, name="loss"):
    lines = [
        json.dumps({"step": step, "time": at(minutes).timestamp() + step, "values": {name: value}})
        for step, value in steps.items()
    ]
    jobs.add_log(job_id, stream, lines, minutes=minutes, source="metrics")


@pytest.fixture
def trained(jobs):
    """A job with a curve: steps 40 and 45 of the first launch were made again."""
    job_id = jobs.reclaimed_and_finished("digits-a")
    log_metrics(jobs, job_id, "1-1", {0: 2.0, 20: 1.0, 40: 0.6, 45: 0.5}, minutes=2)
    log_metrics(jobs, job_id, "2-1", {40: 0.7, 60: math.nan, 80: 0.3}, minutes=8)
    return jobs


@pytest.fixture
def figures(monkeypatch):
    """The figures that were drawn, still in matplotlib's hands."""
    kept = []
    real = drawing.save

    def save(figure, path):
        kept.append(figure)
        real(figure, path)

    monkeypatch.setattr(plots, "save", save)
    return kept


def data(line):
    return [
        (int(x), None if math.isnan(y) else round(float(y), 3))
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    ]


@pytest.mark.full
@pytest.mark.parametrize(
    ("suffix", "start"), [("png", b"\x89PNG\r\n"), ("svg", b"<?xml"), ("pdf", b"%PDF-"), ("PNG", b"\x89PNG")]
)
def test_the_ending_names_the_format(trained, tmp_path, suffix, start):
    path = tmp_path / f"picture.{suffix}"
    result = trained.run("show", "digits-a", "--plot", str(path))
    assert path.read_bytes().startswith(start)
    assert result.stderr == f"drawn: {path}\n"
    assert result.stdout.startswith("job digits-a succeeded\n")


@pytest.mark.full
def test_the_curve_is_drawn_once_with_what_was_made_again_beside_it(trained, tmp_path, figures):
    trained.run("show", "digits-a", "--plot", str(tmp_path / "a.png"))
    [figure] = figures
    panel, _ = figure.axes
    assert (panel.get_title(loc="left"), panel.get_xlabel()) == ("loss", "step")
    again, curve, odd, resumed = panel.lines
    assert data(again) == [(40, 0.6), (45, 0.5)]
    assert data(curve) == [(0, 2.0), (20, 1.0), (40, 0.7), (60, None), (80, 0.3)]
    assert list(odd.get_xdata()) == [60]
    assert panel.get_title(loc="right") == "x: no finite value"
    assert list(resumed.get_xdata()) == [40, 40]


@pytest.mark.full
def test_the_timeline_has_a_row_for_the_job_and_each_node_with_notices_and_commits(
    trained, tmp_path, figures
):
    trained.run("show", "digits-a", "--plot", str(tmp_path / "a.png"))
    below = figures[0].axes[-1]
    assert [label.get_text() for label in below.get_yticklabels()] == ["job", "node 1.0", "node 2.0"]
    assert below.get_xlabel() == "minutes since the submission"
    assert below.get_xlim() == (0.0, 12.0)
    words = [text.get_text() for text in below.get_legend().get_texts()]
    assert words == [
        "launching", "setup", "restoring", "starting", "training", "saving", "waiting",
        "notice", "commit", "made again", "resumed",
    ]  # fmt: skip
    marks = {line.get_label(): line for line in below.lines}
    assert list(marks["notice"].get_xdata()) == pytest.approx([5.0])
    assert list(marks["notice"].get_ydata()) == [-1]
    assert list(marks["commit"].get_xdata()) == pytest.approx([5.15, 11.6])
    assert [text.get_text() for text in below.texts] == [" launch 1", " launch 2"]


@pytest.mark.full
def test_a_job_without_metrics_has_its_timeline_alone(jobs, tmp_path, figures):
    jobs.submit("new-1")
    jobs.failed("broken-1")
    for job_id in ("new-1", "broken-1"):
        jobs.run("show", job_id, "--plot", str(tmp_path / "a.png"))
    assert [len(figure.axes) for figure in figures] == [1, 1]


@pytest.mark.full
def test_lines_that_cannot_be_read_are_told_of(jobs, tmp_path):
    job_id = jobs.running("digits-a")
    jobs.add_log(job_id, "1-0", ["{"], minutes=101, source="metrics")
    result = jobs.run("show", job_id, "--plot", str(tmp_path / "a.png"))
    assert "1 unreadable lines in the metrics of job digits-a are not drawn\n" in result.stderr


@pytest.mark.full
def test_two_jobs_are_drawn_over_each_other(trained, tmp_path, figures):
    trained.failed("digits-b")
    log_metrics(trained, "digits-b", "1-0", {0: 3.0, 5: 2.0}, minutes=21)
    log_metrics(trained, "digits-b", "1-1", {5: 0.1}, minutes=21, name="accuracy")
    result = trained.run("compare", "digits-a", "digits-b", "--plot", str(tmp_path / "two.svg"))
    assert result.stderr == f"drawn: {tmp_path}/two.svg\n"
    loss, accuracy, below = figures[0].axes
    assert [data(line)[0] for line in loss.lines if line.get_label().startswith("digits")] == [
        (0, 2.0),
        (0, 3.0),
    ]
    assert [text.get_text() for text in loss.get_legend().get_texts()] == ["digits-a", "digits-b"]
    assert [text.get_text() for text in accuracy.get_legend().get_texts()] == ["digits-b"]
    assert [label.get_text() for label in below.get_yticklabels()] == ["digits-a", "digits-b"]


@pytest.mark.full
def test_names_that_mean_something_to_the_renderer_are_drawn_as_they_are(jobs, tmp_path):
    job_id = jobs.running()
    log_metrics(jobs, job_id, "1-0", {1: 1e300, 2: -1e300}, minutes=101, name="$x_{$ 損失 <b>&")
    jobs.run("show", job_id, "--plot", str(tmp_path / "a.svg"))
    text = (tmp_path / "a.svg").read_text()
    assert "$x_{$ 損失 &lt;b&gt;&amp;" in text


@pytest.mark.full
def test_more_metrics_and_nodes_than_there_is_room_for_are_counted(trained, tmp_path, figures, monkeypatch):
    monkeypatch.setattr(drawing, "MAX_METRICS", 0)
    monkeypatch.setattr(plots, "MAX_ROWS", 0)
    trained.run("show", "digits-a", "--plot", str(tmp_path / "a.png"))
    [below] = figures[0].axes
    assert below.get_title(loc="right") == "1 more metrics are not shown"
    assert below.get_xlabel() == "minutes since the submission; 2 older nodes are not shown"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a.gif", "--plot must end in .png, .svg or .pdf: got"),
        ("a", "--plot must end in"),
        ("none/a.png", "--plot: there is no directory"),
        ("directory.png", "directory.png is a directory; name a file"),
    ],
)
@pytest.mark.parametrize("command", [["show", "other"], ["compare", "other", "another"]])
def test_where_nothing_can_be_drawn_is_said_before_anything_is_read(jobs, tmp_path, command, name, words):
    (tmp_path / "directory.png").mkdir()
    result = jobs.run(*command, "--plot", str(tmp_path / name), status=2)
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_without_matplotlib_the_command_to_get_it_is_named(jobs, tmp_path, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else real(name)
    )
    result = jobs.run("show", "other", "--plot", str(tmp_path / "a.png"), status=2)
    assert result.stderr == "error: --plot needs matplotlib; run: pip install matplotlib\n"


@pytest.mark.full
def test_a_file_that_cannot_be_written_is_one_line(trained, tmp_path):
    directory = tmp_path / "loop.png"
    directory.symlink_to(directory)
    result = trained.run("show", "digits-a", "--plot", str(directory), status=1)
    assert re.fullmatch(r"error: --plot: cannot write .*loop.png: .*\n", result.stderr)


def test_a_log_that_does_not_answer_is_one_line(trained, tmp_path, monkeypatch):
    def streams(self):
        raise TransientError("the log is away")

    monkeypatch.setattr(ObjectStoreLogSink, "streams", streams)
    result = trained.run("show", "digits-a", "--plot", str(tmp_path / "a.png"), status=7)
    assert result.stderr.startswith("error: the log is away")
