"""What a changed record can make `fork`, `resume`, `move` and the drivers do on the user's computer."""

import msgspec
import pytest

from cloudspot.cli import config
from cloudspot.cli.commands import fork as fork_module
from cloudspot.cli.commands import resume as resume_module
from cloudspot.cli.jobs import Job
from cloudspot.cli.preparing.preparedjob import with_secrets
from cloudspot.cli.screen import output
from cloudspot.cli.stored.trust import check_trusted, noting
from cloudspot.controller.ownership import open_to_drive, store_label
from cloudspot.errors import CloudspotError, SpecError
from cloudspot.jobfile.spec import spec_from_json
from cloudspot.jobstore.jobs import own_jobs
from cloudspot.jobstore.jobs.job_lists import list_jobs
from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.jobstore.jobs.state_home import state_home
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import Submission
from cloudspot.local.provider import LocalProvider
from cloudspot.model import Capability

JOB = "digits-1"


@pytest.fixture(autouse=True)
def unfollowed(monkeypatch):
    for module in (resume_module, fork_module):
        monkeypatch.setattr(module, "follow", lambda job, **options: 0)


@pytest.fixture
def nothing_leaves(monkeypatch):
    """Neither a registry nor an input's server nor the environment may be asked."""

    def refuse(*_arguments, **_options):
        raise AssertionError("something has left this computer")

    for module in (resume_module, fork_module):
        for name in ("with_secrets", "open_pinned", "find_inputs"):
            monkeypatch.setattr(module, name, refuse)


def history(jobs, job_id=JOB):
    return HistoryReader(jobs.store, job_id).read()


def tampered(jobs, **run):
    """Change the record as a writer of the bucket can; return the hash of the forged submission."""
    jobs.stopped()
    submission = codec.decode(jobs.store.get(keys.spec(JOB)), Submission)
    spec = {**submission.spec, "run": {**submission.spec["run"], **run}}
    names = spec_from_json(spec).secret_names
    jobs.put(keys.spec(JOB), msgspec.structs.replace(submission, spec=spec, secret_names=names))
    return history(jobs).submission_sha256


@pytest.mark.parametrize("command", [["fork", JOB, "--name", "child"], ["resume", JOB]])
def test_a_changed_record_is_shown_and_nothing_is_done_without_a_word_of_the_user(
    jobs, nothing_leaves, monkeypatch, command
):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the victim's own")
    sha256 = tampered(jobs, entrypoint=None, command=["evil"], secrets=["AWS_SECRET_ACCESS_KEY"])
    before = {meta.key for meta in jobs.store.list_objects("")}
    said = jobs.run(*command, status=2).stderr
    assert (
        f"job {JOB} in {jobs.store.url} differs from its submission from this computer; its record says:"
        in said
    )
    assert '  run.command: ["evil"]\n' in said
    assert '  run.secrets: [] -> ["AWS_SECRET_ACCESS_KEY"]\n' in said
    assert (
        f"  the variable AWS_SECRET_ACCESS_KEY would be sent to the store {jobs.store.url}; the training\n"
        in said
    )
    assert f"\n--trust {sha256}:AWS_SECRET_ACCESS_KEY\nerror: " in said
    assert said.endswith(f"to {command[0]} it as shown, give the option above\n")
    assert "the victim's own" not in said
    assert {meta.key for meta in jobs.store.list_objects("")} == before


def test_each_place_that_a_variable_would_go_to_is_named(jobs, nothing_leaves):
    tampered(
        jobs,
        secrets=["WORD"],
        image="evil.example/train:1",
        image_login={"user": "me", "secret": "WORD"},
    )
    said = jobs.run("resume", JOB, status=2).stderr
    assert (
        f"the variable WORD would be sent to the store {jobs.store.url}; the training; "
        "the registry evil.example, as the password of me\n" in said
    )


def test_a_message_that_a_variable_would_go_into_is_named_and_its_url_may_be_any_text(jobs, nothing_leaves):
    jobs.stopped()
    submission = codec.decode(jobs.store.get(keys.spec(JOB)), Submission)
    spec = {**submission.spec, "notify": {"urls": ["json://[${WORD}"]}}
    jobs.put(keys.spec(JOB), msgspec.structs.replace(submission, spec=spec, secret_names=("WORD",)))
    said = jobs.run("fork", JOB, "--name", "child", status=2).stderr
    assert '  notify.urls: [] -> ["json://[${WORD}"]\n' in said
    assert f"would be sent to the store {jobs.store.url}; the server of notify.urls[0]\n" in said


def test_the_option_is_shown_whole_however_many_variables_it_names(jobs, nothing_leaves):
    names = [f"THE_PASSWORD_OF_SERVICE_{number}" for number in range(500)]
    sha256 = tampered(jobs, secrets=names)
    said = jobs.run("fork", JOB, "--name", "child", status=2).stderr
    assert f"--trust {sha256}:{','.join(names)}" in said.splitlines()


@pytest.mark.parametrize("given", ["{0}", "{0}:", "{0}:TOKEN,OTHER", f"{'0' * 64}:TOKEN", "{0}:OTHER"])
def test_trust_that_does_not_name_the_record_and_each_variable_is_refused(jobs, nothing_leaves, given):
    sha256 = tampered(jobs, secrets=["TOKEN"])
    said = jobs.run("fork", JOB, "--name", "child", "--trust", given.format(sha256), status=2).stderr
    assert "--trust does not match" in said
    assert list_jobs(jobs.store) == (JOB,)


def test_a_record_that_is_trusted_by_its_hash_is_forked_and_resumed(jobs, monkeypatch):
    monkeypatch.setenv("TOKEN", "mine")
    sha256 = tampered(jobs, secrets=["TOKEN"])
    jobs.run("fork", JOB, "--name", "child", "--trust", f"{sha256}:TOKEN")
    assert history(jobs, "child").submission.secret_names == ("TOKEN",)
    jobs.run("resume", JOB, "--trust", f"{sha256}:TOKEN")
    for job_id in (JOB, "child"):
        note = own_jobs.find_note(job_id, store_url=store_label(jobs.store))
        assert list(note.submissions)[-1] == history(jobs, job_id).submission_sha256


def test_on_a_terminal_it_is_asked(jobs, monkeypatch):
    tampered(jobs, env={"LR": "2"})
    monkeypatch.setattr(output, "can_ask", lambda: True)
    result = jobs.run("resume", JOB, typed="n\n", status=130)
    assert "resume it, as shown [y/N]" in result.stderr
    assert history(jobs).finished is not None
    jobs.run("resume", JOB, typed="y\n")
    assert history(jobs).finished is None


def test_a_job_with_variables_for_its_machines_is_adopted_like_any_other(jobs, tmp_path, monkeypatch):
    job_id = jobs.running()
    submission = codec.decode(jobs.store.get(keys.spec(job_id)), Submission)
    spec = {**submission.spec, "providers": {"local": {"pass_environment": ["TOKEN"]}}}
    jobs.put(keys.spec(job_id), msgspec.structs.replace(submission, spec=spec))
    monkeypatch.setenv("CLOUDSPOT_LOCAL_HOME", str(tmp_path / "another-computer"))
    assert "was not submitted from here" in jobs.run("reconcile", "--job", job_id, status=1).stderr
    monkeypatch.setattr("cloudspot.cli.jobs.Job.check_silence", lambda _job: None)
    monkeypatch.setattr("cloudspot.cli.commands.attach.follow", lambda job, is_plain: 0)
    said = jobs.run("attach", "--adopt", job_id, status=2).stderr
    assert '  providers.local.pass_environment: ["TOKEN"]\n' in said
    jobs.run("attach", "--adopt", job_id, "--trust", history(jobs, job_id).submission_sha256)
    assert own_jobs.find_note(job_id, store_url=store_label(jobs.store)) is not None


def test_a_job_of_another_computer_is_shown_whole_and_asked_about(jobs, tmp_path, monkeypatch):
    jobs.stopped()
    monkeypatch.setenv("CLOUDSPOT_LOCAL_HOME", str(tmp_path / "another-computer"))
    said = jobs.run("resume", JOB, status=2).stderr
    assert "was not submitted from this computer; its record says:" in said
    assert '  run.entrypoint: "train.py"\n' in said
    assert "code_sha256: " in said
    sha256 = history(jobs).submission_sha256
    jobs.run("resume", JOB, "--trust", sha256)
    note = own_jobs.find_note(JOB, store_url=store_label(jobs.store))
    assert list(note.submissions) == [history(jobs).submission_sha256]


def test_a_record_that_is_replaced_while_it_is_looked_at_is_not_used(jobs, monkeypatch):
    sha256 = tampered(jobs, env={"LR": "2"})
    shown = history(jobs).submission.code_sha256
    real = resume_module.check_trusted

    def swapping(job, seen, **options):
        real(job, seen, **options)
        submission = codec.decode(jobs.store.get(keys.spec(JOB)), Submission)
        jobs.put(keys.spec(JOB), msgspec.structs.replace(submission, code_sha256="e" * 64))

    monkeypatch.setattr(resume_module, "check_trusted", swapping)
    jobs.run("resume", JOB, "--trust", sha256)
    note = own_jobs.find_note(JOB, store_url=store_label(jobs.store))
    assert note.newest["code_sha256"] == history(jobs).submission.code_sha256 == shown != "e" * 64


def test_a_job_that_was_resumed_since_its_provider_was_opened_is_not_trusted(jobs):
    """The provider was opened for another record than the one that would be shown."""
    before = tampered(jobs, env={"LR": "2"})
    job = Job(jobs.store, JOB)
    assert job.submission_sha256 == before
    submission = codec.decode(jobs.store.get(keys.spec(JOB)), Submission)
    jobs.put(keys.spec(JOB), msgspec.structs.replace(submission, code_sha256="e" * 64))
    now = history(jobs)
    with pytest.raises(CloudspotError, match=f"job '{JOB}' has changed in the meantime"):
        check_trusted(job, now, trust=now.submission_sha256, action="move", sends=None)


@pytest.mark.parametrize("is_this_computer", [True, False])
def test_a_job_that_cannot_be_noted_is_submitted_only_if_its_machines_are_others(
    jobs, local_home, monkeypatch, capsys, is_this_computer
):
    jobs.stopped()
    monkeypatch.setattr(
        LocalProvider, "capabilities", frozenset([Capability.THIS_COMPUTER] * is_this_computer)
    )
    note, submission = noting(jobs.store, LocalProvider()), history(jobs).submission
    (state_home() / "own-jobs").chmod(0o755)
    if is_this_computer:
        with pytest.raises(SpecError, match="own-jobs has mode 755, not 700"):
            note(submission, "6" * 64)
    else:
        note(submission, "6" * 64)
        note(submission, "6" * 64)
        assert capsys.readouterr().err.count("the job cannot be noted here") == 1


def test_a_running_job_whose_record_changed_is_not_moved(jobs):
    job_id = jobs.running()
    submission = codec.decode(jobs.store.get(keys.spec(job_id)), Submission)
    jobs.put(keys.spec(job_id), msgspec.structs.replace(submission, code_sha256="e" * 64))
    said = jobs.run("move", job_id, "--market", "on-demand", "--yes", status=2).stderr
    assert f'code_sha256: "{submission.code_sha256}" -> "{"e" * 64}"' in said
    assert "to move it as shown, give the option above" in said
    assert len(history(jobs, job_id).launches) == 1


def test_trust_is_for_an_adoption_only(jobs):
    said = jobs.run("attach", jobs.running(), "--trust", "5" * 64, status=2).stderr
    assert "--trust has no effect without --adopt" in said


def test_a_removed_job_is_no_longer_noted(jobs):
    jobs.reclaimed_and_finished()
    where = {"store_url": store_label(jobs.store)}
    assert own_jobs.find_note("digits-7k3f", **where) is not None
    jobs.run("rm", "digits-7k3f", "--yes")
    assert own_jobs.find_note("digits-7k3f", **where) is None


def test_the_jobs_secrets_are_all_that_is_taken_from_the_environment(monkeypatch):
    monkeypatch.setenv("TOKEN", "new")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not asked for")
    spec = spec_from_json({"name": "a", "run": {"command": ["true"], "secrets": ["TOKEN", "WORD"]}})
    assert with_secrets(spec, {"TOKEN": "old", "WORD": "stored", "X": "y"}) == {
        "TOKEN": "new",
        "WORD": "stored",
    }


# --- options of the driver's computer -------------------------------------------------------------

POD = {"image": "train:1", "types": {"a": {"spot_price": 1}}}


def forged(jobs, **options):
    if not list_jobs(jobs.store):
        jobs.stopped()
    submission = codec.decode(jobs.store.get(keys.spec(JOB)), Submission)
    spec = {**submission.spec, "providers": {"kubernetes": {**POD, **options}}}
    return msgspec.structs.replace(submission, provider="kubernetes", spec=spec)


def opened(jobs, submission, configured=None):
    """Return the kubeconfig and the context that a driver on this computer goes by."""
    spec = spec_from_json(submission.spec)
    options = open_to_drive(jobs.store, submission, spec, lambda _name: configured or {}).options
    return {
        name: getattr(options, name)
        for name in ("kubeconfig", "context")
        if getattr(options, name) is not None
    }


@pytest.mark.parametrize("option", ["kubeconfig", "context"])
def test_no_kubeconfig_is_read_because_a_record_names_it(jobs, option):
    submission = forged(jobs, **{option: "evil"})
    with pytest.raises(SpecError) as refused:
        opened(jobs, submission)
    assert f"its record sets providers.kubernetes.{option}" in str(refused.value)
    assert "set it in the table [providers.kubernetes] of your config file" in str(refused.value)
    assert opened(jobs, submission, {option: "mine"}) == {option: "mine"}
    assert opened(jobs, submission, {option: ""}) == {option: ""}


def test_what_the_submission_noted_here_names_is_used(jobs):
    submission = forged(jobs, kubeconfig="/home/me/cluster")
    own_jobs.note_job(submission, store_url=store_label(jobs.store), sha256="5" * 64)
    assert opened(jobs, submission, {"kubeconfig": "other"}) == {"kubeconfig": "/home/me/cluster"}
    with pytest.raises(SpecError):
        opened(jobs, forged(jobs, kubeconfig="/home/me/another"))


def test_reading_a_strangers_job_takes_no_option_of_it_and_driving_it_names_the_one_that_is_missing(jobs):
    submission = forged(jobs, kubeconfig="/evil")
    jobs.put(keys.spec(JOB), submission)
    assert jobs.run_json("show", JOB)["provider"] == "kubernetes"
    jobs.run("logs", JOB)
    said = jobs.run("reconcile", "--job", JOB, status=2).stderr
    assert "its record sets providers.kubernetes.kubeconfig" in said


def test_the_config_file_has_such_options_for_any_job_and_others_for_ones_own_job_files(
    tmp_path, monkeypatch
):
    path = tmp_path / "config.toml"
    monkeypatch.setenv(config.CONFIG_VARIABLE, str(path))
    path.write_text('[providers.kubernetes]\nkubeconfig = "/mine"\n')
    assert config.configured_options("kubernetes") == {"kubeconfig": "/mine"}
    assert config.configured_options("local") == {}
    assert config.open_configured("kubernetes", None).options.kubeconfig == "/mine"
    spec = spec_from_json(
        {
            "name": "a",
            "run": {"command": ["true"]},
            "providers": {"kubernetes": {**POD, "kubeconfig": "/job's"}},
        }
    )
    assert config.open_configured("kubernetes", spec).options.kubeconfig == "/job's"
    path.write_text('[providers.kubernetes]\nkubeconfig = "/mine"\nnamespace = "ml"\n')
    assert config.configured_options("kubernetes") == {"kubeconfig": "/mine"}
    kept = config.with_configured(spec, "kubernetes").providers["kubernetes"]
    assert kept == {**POD, "kubeconfig": "/job's", "namespace": "ml"}
    assert config.with_configured(spec, "local") == spec
    assert config.open_configured("kubernetes", spec).options.namespace == "ml"
    path.write_text('[providers.kubernetes]\nimages = "x"\n')
    with pytest.raises(SpecError, match=r"providers\.kubernetes\.images"):
        config.open_configured("kubernetes", None)
