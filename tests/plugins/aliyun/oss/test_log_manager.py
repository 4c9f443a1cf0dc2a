"""A log manager's work on logs in OSS: by ``cloudspot logs``, when the machines are gone, from any machine."""

import json
from datetime import datetime, timedelta, timezone

import pytest
from click.testing import CliRunner

from cloudspot.cli.main import program
from cloudspot.jobfile.spec import load_job
from cloudspot.jobstore.jobs.submission import submit
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import Certificate, Finished, Heartbeat, Intent, LogStanding, new_nonce
from cloudspot.jobstore.nodes.launches import claim_slot
from cloudspot.model import EndReason, LaunchRequest, LogRecord, Market, NodeIdentity, Offer
from cloudspot_aliyun.osslogs import OssLogSink

pytestmark = pytest.mark.full


NOW = datetime.now(timezone.utc)
NOON = NOW.replace(hour=12, minute=0, second=0, microsecond=0)
JOB = "digits-7k3f"


@pytest.fixture
def manage(store, tmp_path, monkeypatch):
    """A job of two nodes, written over a week, whose machines are gone; run a command on it."""
    monkeypatch.setenv("ECS_ENDPOINT", "http://127.0.0.1:9")
    (tmp_path / "train.py").write_text("")
    (tmp_path / "job.toml").write_text('name = "digits"\nnodes = 2\n[run]\nentrypoint = "train.py"\n')
    spec = load_job(tmp_path / "job.toml")
    submit(store, spec=spec, provider="aliyun", workdir=tmp_path, environ={}, job_id=JOB)
    intent = Intent(
        launch=1,
        offer=Offer(
            instance_type="x", zone="z", market=Market.SPOT, price_per_hour=1.0, on_demand_price_per_hour=2.0
        ),
        token="t",
        request=LaunchRequest(provider="aliyun", body={}),
        num_nodes=2,
        why="first",
        at=NOW,
        writer=new_nonce(),
    )
    assert Journal(store, JOB).append(intent, 1)
    for rank in (0, 1):
        sink = OssLogSink(store, JOB, instance_id=f"i-{rank}")
        for seq, ago in enumerate((8, 2, 0)):
            at = NOON - timedelta(days=ago) if ago else NOW
            text = f"node {rank}, {ago} days ago"
            sink.write([LogRecord(stream=f"1-{rank}", seq=seq, time=at, text=text)])
        identity = NodeIdentity(instance_id=f"i-{rank}", rank=rank, address="10.0.0.1")
        claim_slot(store, JOB, 1, rank, identity)
        store.put(keys.heartbeat(JOB, 1, rank), codec.encode(beat(rank)))
        proof = Certificate(
            launch=1, rank=rank, instance_id=f"i-{rank}", started_at=NOW, ended_at=NOW,
            end_reason=EndReason.SELF, at=NOW, writer=new_nonce(),
        )  # fmt: skip
        store.put(keys.certificate(JOB, 1, f"i-{rank}"), codec.encode(proof))
    finished = Finished(outcome="succeeded", detail="", exit_code=0, at=NOW, writer=new_nonce())
    assert Journal(store, JOB).append(finished, 2)

    def run(*arguments, status=0):
        result = CliRunner().invoke(program, [*arguments], env={"CLOUDSPOT_STORE": store.url})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == status, result.output
        return result

    return run


def beat(rank):
    """What the node said last: of the second one, two lines never delivered."""
    return Heartbeat(
        counter=1,
        instance_id=f"i-{rank}",
        address="10.0.0.1",
        port=1,
        state="ending",
        generation=1,
        restored_step=0,
        step=1,
        steps_total=1,
        metrics={},
        committed=None,
        stall_seconds=None,
        upload_seconds=None,
        log=LogStanding(num_lines=3 + 2 * rank, waiting_bytes=0),
        at=NOW,
    )


def texts(result):
    return [json.loads(line)["text"] for line in result.stdout.splitlines()]


def day(ago):
    return (NOON - timedelta(days=ago)).date().isoformat()


def test_view_the_last_lines_by_date_and_by_node(manage):
    last = texts(manage("logs", JOB, "-n", "2", "--json"))
    assert last == ["node 0, 0 days ago", "node 1, 0 days ago"]
    of_a_day = ("--since", f"{day(2)}T00:00Z", "--until", f"{day(1)}T00:00Z")
    assert texts(manage("logs", JOB, *of_a_day, "--json")) == ["node 0, 2 days ago", "node 1, 2 days ago"]
    one = texts(manage("logs", JOB, "--node", "1.1", "--json"))
    assert one == ["node 1, 8 days ago", "node 1, 2 days ago", "node 1, 0 days ago"]
    assert texts(manage("logs", JOB, "--follow", "--node", "1.0", "--since", "1h", "--json")) == [
        "node 0, 0 days ago"
    ]


def test_download_the_last_days_on_a_new_machine(manage, tmp_path):
    manage("logs", JOB, "--download", str(tmp_path / "logs"), "--since", "3d")
    files = {path.name: path.read_text().splitlines() for path in (tmp_path / "logs").iterdir()}
    assert {name: len(lines) for name, lines in files.items()} == {
        "node-1.0.log": 2,
        "node-1.1.log": 2,
    }


def test_list_tells_days_sizes_and_the_state_of_the_sync(manage):
    first, second = json.loads(manage("logs", JOB, "--list", "--json").stdout)
    assert (first["first_day"], first["last_day"], first["lines"], first["pieces"]) == (
        day(8),
        NOW.date().isoformat(),
        3,
        3,
    )
    assert (first["delivery"], second["delivery"]) == ("complete", "incomplete")
    assert "2 lines never delivered" in manage("logs", JOB, "--list").stdout


def test_prune_deletes_old_objects_and_no_others(oss, store, manage):
    result = manage("logs", JOB, "--prune", "7d", "--yes")
    assert result.stdout.startswith("deleted 2 pieces")
    assert len(texts(manage("logs", JOB, "--json"))) == 4
    left = [meta.key for meta in store.list_objects("logs/")]
    assert {key.split("/")[2] for key in left} == {day(2), NOW.date().isoformat()}


def test_the_log_goes_with_the_job_and_counts_in_its_size(store, manage):
    count = 6 + len(list(store.list_objects(f"jobs/{JOB}/")))
    size = sum(meta.size for prefix in (f"jobs/{JOB}/", "logs/") for meta in store.list_objects(prefix))
    assert manage("rm", JOB, "--yes").stdout.startswith(f"{JOB}: {count} objects, {size / 1024:.1f} KiB")
    assert list(store.list_objects("")) == []


def test_the_log_of_another_job_stays(store, manage):
    other = OssLogSink(store, "other", instance_id="i-0")
    other.write([LogRecord(stream="1-0", seq=0, time=NOW, text="stays")])
    manage("rm", JOB, "--yes")
    assert [meta.key.split("/")[-1].split(".")[0] for meta in store.list_objects("logs/")] == ["other"]
