"""The record by which a machine's end finds the machine's container."""

import logging
import os

import pytest

from cloudspot.host import job_containers
from cloudspot.host.job_containers import forget_container, record_container, remove_recorded_container


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """An engine that writes down its words and whether it bears one of cloudspot's variables."""
    log, programs = tmp_path / "calls", tmp_path / "programs"
    programs.mkdir()
    (programs / "podman").write_text(f'#!/bin/sh\necho "$* $CLOUDSPOT_MACHINE" >> {log}\n')
    (programs / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CLOUDSPOT_MACHINE", "mark")
    return lambda: log.read_text().splitlines() if log.exists() else []


def test_a_recorded_container_is_killed_and_removed(tmp_path, calls):
    record_container(tmp_path, "/usr/bin/podman", "cloudspot-job-1")
    remove_recorded_container(tmp_path)
    assert calls() == ["kill --signal KILL cloudspot-job-1 ", "rm --force --volumes cloudspot-job-1 "]


def test_nothing_is_run_without_a_record_or_after_its_deletion(tmp_path, calls):
    remove_recorded_container(tmp_path)
    record_container(tmp_path, "podman", "cloudspot-job-1")
    forget_container(tmp_path)
    remove_recorded_container(tmp_path)
    assert calls() == []


@pytest.mark.parametrize(
    "text", ["", "sh\n-c\n", "podman\n--all\n", "podman\n", "\xff", "podman\none\ntwo\n"]
)
def test_a_malformed_record_runs_nothing_and_is_reported(tmp_path, calls, caplog, text):
    (tmp_path / "container").write_bytes(text.encode("latin-1"))
    with caplog.at_level(logging.WARNING):
        remove_recorded_container(tmp_path)
    assert calls() == []
    assert "container" in caplog.text


def test_an_engine_that_hangs_delays_a_machines_end_for_a_bounded_time(tmp_path, calls, caplog, monkeypatch):
    (tmp_path / "programs" / "podman").write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(job_containers, "ENGINE_SECONDS", 0.1)
    record_container(tmp_path, "podman", "cloudspot-job-1")
    remove_recorded_container(tmp_path)
    assert "cloudspot-job-1 may be left" in caplog.text


@pytest.mark.parametrize(
    ("answer", "is_reported"), [("Error: no such container x", False), ("cannot connect to Docker", True)]
)
def test_a_container_that_an_engine_does_not_remove_is_reported_unless_it_is_gone(
    tmp_path, calls, caplog, answer, is_reported
):
    (tmp_path / "programs" / "podman").write_text(f"#!/bin/sh\necho '{answer}' >&2; exit 1\n")
    record_container(tmp_path, "podman", "cloudspot-job-1")
    remove_recorded_container(tmp_path)
    assert (answer in caplog.text) == is_reported
