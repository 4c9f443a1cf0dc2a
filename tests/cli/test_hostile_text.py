"""Text from the bucket, in every field of every record, meets no terminal raw."""

import json
import re
from datetime import datetime, timezone

import pytest
from click.testing import CliRunner
from msgspec import inspect
from rich.text import Text
from support.records.made_journal import forget_copies
from support.records.odd_values import HOSTILE, with_hostile_text
from support.records.record_kinds import HEALTHY, ODD, kind_of

from cloudspot.cli.following.livescreen import _as_text
from cloudspot.cli.following.liveview import Sights, look
from cloudspot.cli.following.panel import render
from cloudspot.cli.main import program
from cloudspot.cli.screen.lines import Line
from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import Certificate

pytestmark = pytest.mark.full


OURS = re.compile(r"\x1b\[(?:0|1|2|3[1-6])m")
"""The styles that the program itself gives on a terminal."""
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
KEPT = frozenset({"job_id", "provider", "spec", "seal", "submission", "xxh3_128"})
"""Another job, another checksum and so on: then the rest of the record would not be read."""
NOW = datetime.now(timezone.utc)

COMMANDS = (
    ("ps", "--all"),
    ("cost", "--by", "zone"),
    ("cost", "--by", "zone", "--csv"),
    ("show", "ID"),
    ("logs", "ID"),
    ("logs", "ID", "--grep", "evil"),
    ("logs", "ID", "--list"),
    ("checkpoints", "ls", "ID"),
    ("checkpoints", "verify", "ID"),
    ("artifacts", "ls", "ID"),
    ("compare", "ID", HEALTHY[0]),
    ("compare", ODD[0], ODD[1]),
    ("attach", "--plain", "ID"),
    ("preempt", "ID"),
    ("stop", "ID"),
    ("reconcile",),
    ("rm", "--yes", "ID"),
)
JSON_COMMANDS = (
    ("ps", "--all", "--json"),
    ("cost", "--by", "zone", "--json"),
    ("show", "ID", "--json"),
    ("logs", "ID", "--list", "--json"),
    ("checkpoints", "ls", "ID", "--json"),
    ("checkpoints", "verify", "ID", "--json"),
    ("artifacts", "ls", "ID", "--json"),
    ("compare", "ID", HEALTHY[0], "--json"),
)


def run(store, job_id, arguments):
    """Run a command as if on a terminal that shows colours."""
    words = [job_id if word == "ID" else word for word in arguments]
    result = CliRunner().invoke(program, words, env={"CLOUDSPOT_STORE": store.url}, color=True)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def check(result):
    assert FORBIDDEN.findall(OURS.sub("", result.output)) == []
    return "evil" in result.output


def spoil(store, job_id, key):
    kind, lines = kind_of(key), store.get(key).splitlines()
    values = [with_hostile_text(json.loads(line), inspect.type_info(kind), kept=KEPT) for line in lines]
    if kind is Certificate:  # It lies under its machine's name.
        store.delete(key)
        key = keys.certificate(job_id, values[0]["launch"], values[0]["instance_id"])
    store.put(key, b"\n".join(json.dumps(value).encode() for value in values))


@pytest.fixture
def hostile_jobs(four_jobs):
    """The two odd jobs with hostile text wherever a record of theirs holds text, and one artifact so named."""
    for job_id in ODD:
        for meta in list(four_jobs.list_objects(keys.job_prefix(job_id))):
            if kind_of(meta.key) is not None:
                spoil(four_jobs, job_id, meta.key)
        key = keys.spec(job_id)
        submission = json.loads(four_jobs.get(key))
        submission["spec"]["run"]["env"] = {"A": HOSTILE}
        four_jobs.put(key, json.dumps(submission).encode())
        four_jobs.put(keys.artifact(job_id, "\x1b]0;title\x07evil\x9b31m\u202e"), b"x")
    return four_jobs


@pytest.mark.parametrize("job_id", ODD)
def test_no_control_character_of_any_record_reaches_the_terminal(hostile_jobs, job_id):
    shown = {arguments for arguments in COMMANDS if check(run(hostile_jobs, job_id, arguments))}
    assert shown >= {
        ("ps", "--all"),
        ("cost", "--by", "zone"),
        ("show", "ID"),
        ("logs", "ID"),
        ("artifacts", "ls", "ID"),
    }


@pytest.mark.parametrize("job_id", ODD)
def test_json_has_every_text_unchanged_and_is_printable_ascii(hostile_jobs, job_id):
    for arguments in JSON_COMMANDS:
        result = run(hostile_jobs, job_id, arguments)
        assert result.exit_code == 0, result.output
        output = result.stdout
        assert re.search(r"[^\n -~]", output) is None, arguments
        assert json.loads(output), (arguments, output)
    lines = run(hostile_jobs, job_id, ("logs", "ID", "--json")).stdout.splitlines()
    assert all(json.loads(line)["text"].endswith(HOSTILE) for line in lines)
    shown = json.loads(run(hostile_jobs, job_id, ("show", "ID", "--json")).stdout)
    assert all(launch["zone"].endswith(HOSTILE) for launch in shown["launches"])


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("journal/<intent>", "stands_in_for"),
        ("journal/<finished>", "outcome"),
        ("journal/<finished>", "type"),
        ("journal/<generation>", "at"),
        ("journal/<commit>", "kind"),
        ("journal-copies/00000004-00000001", "first_writer"),
        ("journal-copies/00000004-00000001", "records"),
        ("spec", "provider"),
        ("spec", "job_id"),
        ("summary", "job_id"),
        ("nodes/000002/0000/exit.json", "outcome"),
        ("nodes/000002/0000/heartbeat", "state"),
        ("launches/000002/machines/m-2", "end_reason"),
        ("logs/2-0/{day}/000000000000", "stream"),
    ],
)
def test_a_word_that_no_fold_knows_is_quoted_without_its_control_characters(four_jobs, name, field):
    prefix = keys.job_prefix(ODD[0])
    journal = enumerate(Journal(four_jobs, ODD[0]).read(), start=1)
    newest = {f"<{type(record).__name__.lower()}>": f"{number:08d}" for number, record in journal}
    for word, number in newest.items():
        name = name.replace(word, number)
    [key] = [
        meta.key
        for meta in four_jobs.list_objects(prefix)
        if re.fullmatch(prefix + name.replace("{day}", r"[\d-]+"), meta.key)
    ]
    if key.startswith(keys.journal_prefix(ODD[0])):
        forget_copies(four_jobs, ODD[0])  # else the record is not read
    first, *rest = four_jobs.get(key).splitlines()
    four_jobs.put(key, b"\n".join([json.dumps({**json.loads(first), field: HOSTILE}).encode(), *rest]))
    for arguments in COMMANDS:
        check(run(four_jobs, ODD[0], arguments))


@pytest.mark.parametrize("job_id", ODD)
def test_the_live_view_shows_no_control_character(hostile_jobs, job_id):
    history = HistoryReader(hostile_jobs, job_id).read()
    view = look(history, NOW, sights=Sights(), logged={HOSTILE: 0.5})
    for width in (40, 100, 200):
        lines = render(view, width=width, height=60, ascii_only=False, hint="hint")
        assert "evil" in "".join(line.plain for line in lines)
        assert all(FORBIDDEN.search(line.plain) is None and "\n" not in line.plain for line in lines)


def test_a_line_above_the_panel_keeps_its_styles_and_loses_its_control_characters():
    text = _as_text(Line(NOW, f"train{HOSTILE}", f"a{HOSTILE}\nb", "red"))
    assert isinstance(text, Text)
    assert FORBIDDEN.search(text.plain) is None
    assert "\n" not in text.plain
    assert {str(span.style) for span in text.spans} == {"dim", "red"}
