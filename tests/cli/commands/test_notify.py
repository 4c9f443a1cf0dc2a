"""``cloudspot notify test``, and what `plan` and `run` say of [notify] before there is a job."""

import pytest
from support.clouds.messagesink import dead_url, open_sink

from cloudspot.jobfile.notify import NotifySpec
from cloudspot.jobfile.spec import spec_from_json
from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.jobstore.jobs.submission import read_secrets


@pytest.fixture
def notify(jobs):
    """Write [notify] into the job file."""

    def write(text):
        jobs.job_file.write_text(f"{jobs.job_file.read_text()}\n[notify]\n{text}\n")

    return write


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Write the user's config file."""
    path = tmp_path / "config.toml"
    monkeypatch.setenv("CLOUDSPOT_CONFIG", str(path))
    path.write_text("")
    return path


@pytest.mark.full
def test_each_url_gets_a_message_and_is_said_to_have_taken_it_or_not(jobs, notify, monkeypatch):
    with open_sink() as sink, dead_url() as dead:
        monkeypatch.setenv("HOOK", f"{sink.url}/200")
        notify(f'urls = ["${{HOOK}}", "{sink.url}/500", "{dead}"]')
        result = jobs.run("notify", "test", str(jobs.job_file), status=1)
        assert result.stdout.splitlines() == [
            "ok      urls[0] (${HOOK})",
            "FAILED  urls[1] (json://) answered 500",
            "FAILED  urls[2] (json://) could not be reached, or did not accept it",
        ]
        ((_, body),) = [one for one in sink.got if one[0] == "/200"]
        assert body["title"] == "digits: test"
        good = jobs.run("notify", "test", str(jobs.job_file), "--set", 'notify.urls=["${HOOK}"]')
        assert good.stdout == "ok      urls[0] (${HOOK})\n"


@pytest.mark.full
def test_without_a_job_file_that_has_it_the_config_file_is_tried(jobs, config, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with open_sink() as sink:
        config.write_text(f'[notify]\nurls = ["{sink.url}/200"]\n')
        for job_file in ([], [str(jobs.job_file)]):
            assert jobs.run("notify", "test", *job_file).stdout == "ok      urls[0] (json://)\n"
        assert [body["title"] for _, body in sink.got] == ["test: test", "digits: test"]
    config.write_text("")
    result = jobs.run("notify", "test", status=2)
    assert (
        result.stderr == f"error: neither job.toml nor {config} has a [notify] table with urls and events\n"
    )


@pytest.mark.parametrize("command", [["plan"], ["run", "--detach"]])
@pytest.mark.parametrize(
    ("text", "message", "status"),
    [
        ('urls = ["json://host"]\nthrough = "pager"', 'no notifier "pager" is installed', 3),
        ('urls = ["moon://word"]', "notify.urls[0] (moon://) is not a URL that apprise knows", 2),
        ('urls = ["json://host"]\nevents = ["ended"]', "notify.events[0]: expected one of", 2),
        (
            'urls = ["json://host"]\ntimezone = "Mars/One"',
            'notify.timezone: "Mars/One" is not a time zone',
            2,
        ),
        ('urls = ["json://${NOT_SET}"]', "secrets: NOT_SET is not set in the environment", 2),
    ],
)
def test_what_could_not_be_sent_is_refused_before_there_is_a_job(
    jobs, notify, command, text, message, status
):
    notify(text)
    result = jobs.run(*command, str(jobs.job_file), status=status)
    assert message in result.stderr
    assert "word" not in result.stderr
    assert list(jobs.store.list_objects("index/")) == []


@pytest.mark.full
def test_a_url_in_clear_is_warned_of_and_a_secret_is_stored_apart(jobs, notify, monkeypatch):
    monkeypatch.setenv("WORD", "hidden")
    notify('urls = ["json://me:shown@host", "json://me:${WORD}@host"]')
    result = jobs.run("run", str(jobs.job_file), "--detach", "--name", "a-1")
    assert "warning: notify.urls[0] (json://) holds a credential, which anyone could read" in result.stderr
    assert "urls[1]" not in result.stderr
    assert "shown" not in result.output
    submission = HistoryReader(jobs.store, "a-1").read().submission
    assert submission.secret_names == ("WORD",)
    assert read_secrets(jobs.store, "a-1", ["WORD"], resumption=0) == {"WORD": "hidden"}
    for meta in jobs.store.list_objects("jobs/"):
        assert ("secrets" in meta.key) is (b"hidden" in jobs.store.get(meta.key))


def test_what_is_wrong_in_the_config_file_is_named(jobs, config):
    config.write_text('[notify]\nurls = ["nowhere"]\n')
    result = jobs.run("plan", str(jobs.job_file), status=2)
    assert f"{config}: notify.urls[0]: expected a URL" in result.stderr


@pytest.mark.full
def test_the_config_file_is_for_jobs_whose_own_file_says_nothing(jobs, notify, config):
    config.write_text('[notify]\nurls = ["json://host/mine"]\nquiet = "22:00-07:00"\n')

    def submitted(name):
        jobs.run("run", str(jobs.job_file), "--detach", "--name", name)
        return spec_from_json(HistoryReader(jobs.store, name).read().submission.spec).notify

    assert submitted("a-1") == NotifySpec(urls=("json://host/mine",), quiet="22:00-07:00")
    notify("events = []")
    assert not submitted("a-2").is_wanted
