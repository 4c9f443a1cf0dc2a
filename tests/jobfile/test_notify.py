"""[notify]: what is refused, which secrets it names, and when it is quiet."""

from datetime import datetime, timezone

import pytest

from cloudspot.errors import SpecError
from cloudspot.jobfile.notify import NewsKind, NotifySpec
from cloudspot.jobfile.spec import load_job, spec_from_json, spec_to_json

SMALL = 'name = "a"\n[run]\nentrypoint = "a.py"\nsecrets = ["WORD", "TOKEN"]\n[notify]\n'


@pytest.fixture
def load(tmp_path):
    def loaded(text):
        path = tmp_path / "job.toml"
        path.write_text(SMALL + text)
        return load_job(path)

    return loaded


def at(text):
    return datetime.fromisoformat(f"2026-01-10T{text}:00").replace(tzinfo=timezone.utc)


def test_secrets_are_named_in_urls_and_are_the_jobs_but_not_the_trainings(load):
    spec = load('urls = ["slack://${TOKEN}/#ops", "json://host/$x$", "${HOOK}"]')
    assert spec.notify.secret_names == ("TOKEN", "HOOK")
    assert spec.secret_names == ("WORD", "TOKEN", "HOOK")
    assert spec.run.secrets == ("WORD", "TOKEN")
    assert spec_from_json(spec_to_json(spec)) == spec
    assert spec.notify.resolved({"TOKEN": "a$b", "HOOK": "json://secret"}) == {
        "urls[0] (slack://)": "slack://a$b/#ops",
        "urls[1] (json://)": "json://host/$x$",
        "urls[2] (${HOOK})": "json://secret",
    }
    with pytest.raises(SpecError, match=r"notify\.urls: TOKEN is not among the job's secrets"):
        spec.notify.resolved({"HOOK": "x"})


def test_without_urls_or_events_nothing_is_told_and_costs_are_told_only_if_asked_for(load):
    assert not NotifySpec().is_wanted
    assert not load('urls = ["json://x"]\nevents = []').notify.is_wanted
    assert load('urls = ["json://x"]').notify.is_wanted
    assert NewsKind.COST not in load("").notify.events
    assert load('events = ["cost"]').notify.events == (NewsKind.COST,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('urls = ["secret.example/hook"]', "notify.urls[0]: expected a URL such as"),
        ('urls = ["json://x", "${HOOK"]', "notify.urls[1]: expected a URL such as"),
        ('urls = ["json://secret${A B}"]', "notify.urls[0]: expected a URL such as"),
        ('urls = ["json://secret${A"]', "notify.urls[0]: expected a URL such as"),
        ('urls = ["${CLOUDSPOT_STORE}"]', "notify.urls[0]: expected a URL such as"),
        ('events = ["finish"]', 'notify.events[0]: expected one of "cost"'),
        ('quiet = "22-7"', 'notify.quiet: expected hours such as "22:00-07:00", got "22-7"'),
        ('url = "x"', "notify.url: unknown field; did you mean notify.urls?"),
    ],
)
def test_what_is_wrong_is_named_and_no_url_is_shown(load, text, message):
    with pytest.raises(SpecError) as caught:
        load(text)
    assert message in str(caught.value)
    assert "secret." not in str(caught.value)
    assert "//secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("quiet", "zone", "loud", "still"),
    [
        ("22:00-07:00", None, ["07:00", "21:59", "12:00"], ["22:00", "00:00", "06:59"]),
        ("01:00-02:30", None, ["00:59", "02:30"], ["01:00", "02:29"]),
        ("22:00-07:00", "Europe/Berlin", ["06:00", "20:59"], ["05:59", "21:00"]),
        ("22:00-07:00", "Asia/Shanghai", ["23:00", "13:59"], ["14:00", "22:59"]),
        ("22:00-07:00", "Mars/One", ["07:00"], ["06:59"]),
        ("08:00-08:00", None, ["08:00", "20:00"], []),
    ],
)
def test_quiet_hours_are_those_of_the_zone_and_may_pass_midnight(quiet, zone, loud, still):
    notify = NotifySpec(quiet=quiet, timezone=zone)
    assert [notify.is_quiet(at(one)) for one in loud] == [False] * len(loud)
    assert [notify.is_quiet(at(one)) for one in still] == [True] * len(still)
    assert not NotifySpec().is_quiet(at("03:00"))
