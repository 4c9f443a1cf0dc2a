"""A node without a cloud: a store in a directory, a provider whose notices the test gives, a stand-in torchrun."""

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from datetime import datetime, timezone

import msgspec
import pytest
from support.jobs.marks import kill_marked
from support.records import made_journal
from support.records.uploads import upload_session

from cloudspot.agent.life import Life
from cloudspot.agent.membership.agreement import Membership
from cloudspot.agent.node import Node
from cloudspot.agent.node_context import Job
from cloudspot.agent.notices.notice_pipe import NoticePipe
from cloudspot.agent.training.launching.input_staging import InputStaging
from cloudspot.host.boot_clock import this_boot
from cloudspot.interfaces import PreemptionSource, Provider
from cloudspot.jobfile.spec import spec_from_json
from cloudspot.jobstore.checkpoints import retention
from cloudspot.jobstore.code.bundle import make_bundle, put_bundle
from cloudspot.jobstore.jobs.submission import new_submission
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.journal.lineage import generations_of
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import CheckpointId, Exit, SaveId
from cloudspot.local.filestore import FileStore
from cloudspot.model import BootProfile, NodeIdentity
from cloudspot.train import handoff as files

JOB = "digits-1"
_BIND = 'import socket, sys; socket.create_server(("", int(sys.argv[1].rpartition(":")[2])))'
_WITHOUT_MACROS = (
    "import os, string, sys; "
    "words = [string.Template(word).safe_substitute(local_rank=0) for word in sys.argv[1:]]; "
    "os.execvp(words[0], words)"
)


class GivenNotices(PreemptionSource):
    """Says what the test has put into ``notice``."""

    poll_seconds = 0.01

    def __init__(self):
        self.notice_seconds = 120.0
        self._notice = None
        self._polls = 0

    @property
    def notice(self):
        return self._notice

    @notice.setter
    def notice(self, notice):
        self._notice, self._polls = notice, 0

    def polls_since_change(self):
        return self._polls

    def poll(self):
        self._polls += 1
        return self._notice


class Options(msgspec.Struct):
    pass


class GivenProvider(Provider):
    """A machine of this very process."""

    name = "given"
    options_type = Options

    def __init__(self):
        super().__init__(Options())
        self.notices = GivenNotices()

    def provisioner(self):
        raise NotImplementedError

    def preemption_source(self):
        return self.notices

    def node_identity(self):
        return NodeIdentity(instance_id="m-1", rank=0, address="127.0.0.1")

    def boot_profile(self):
        return BootProfile()


class Bench:
    """What one test needs of a node; ``life()`` makes an agent of it, as often as the machine has one."""

    def __init__(self, root):
        self.root = root
        self.store = FileStore(f"file://{root}/store")
        self.store.establish()
        self.provider = GivenProvider()
        self.lives = []
        self.memberships = []
        self._is_over = threading.Event()

    def node(self, *, launch=1, machine="machine"):
        directory = self.root / machine
        node = Node(
            job_id=JOB, launch=launch, store_url=self.store.url, provider="given", directory=directory,
            train_python=str(self.stand_in()), arena=directory / "arena",
            submission_sha256="5" * 64,
        )  # fmt: skip
        directory.mkdir(exist_ok=True)
        node.create_directories()
        return node

    def stand_in(self):
        """A torchrun that starts one rank, in a plain Python; it claims to have torch."""
        path = self.root / "python"
        if path.exists():  # a node that runs may be about to start it: "Text file busy"
            return path
        path.write_text(
            "#!/bin/sh\n"
            '[ "$1" = -c ] && exit 0\n'
            f'[ "$1" = -u ] && shift && exec {sys.executable} -u "$@"\n'
            'while [ "$1" != --no-python ]; do\n'
            '  case "$1" in\n'
            '    --node-rank=*) export RANK="${1#*=}" ;;\n'
            '    --rdzv-endpoint=*) endpoint="${1#*=}" ;;\n'
            "  esac\n"
            "  shift\n"
            "done\n"
            "shift 2\n"
            '[ "$RANK" = 0 ] && ! ' + f"{sys.executable} -c '{_BIND}' " + '"$endpoint" && exit 1\n'
            '[ -z "$BROKEN" ] || exit 1\n'
            '[ -z "$WITHOUT_PEERS" ] || sleep 3600\n'
            f"{sys.executable} -IS -c '{_WITHOUT_MACROS}' " + '"$@" && exit 0\n'
            "sleep ${LINGER:-0}\n"  # as the real one does, for a second or two
            "exit 1\n"
        )
        path.chmod(0o755)
        return path

    def spec(self, **tables):
        script = (
            {} if "command" in tables.get("run", {}) else {"entrypoint": "train.py", "fork_server": False}
        )
        raw = {"name": "digits", "run": script, "logs": {"flush": 0.05}}
        for name, table in tables.items():
            raw[name] = {**raw[name], **table} if isinstance(raw.get(name), dict) else table
        return spec_from_json(raw)

    def life(
        self,
        script="",
        *,
        store=None,
        launch=1,
        machine="machine",
        rank=0,
        num_seats=None,
        bakes=False,
        **tables,
    ):
        code = self.root / "code"
        code.mkdir(exist_ok=True)
        (code / "train.py").write_text(script)
        bundle = make_bundle(code, entrypoint="train.py")
        put_bundle(self.store, keys.code(bundle.sha256), bundle)
        spec = self.spec(**tables)
        submission = new_submission(spec, provider="given", bundle=bundle, job_id=JOB, bakes=bakes)
        name = f"m-{rank + 1}" if launch == 1 else f"m-{launch}-{rank + 1}"
        identity = NodeIdentity(instance_id=name, rank=rank, address="127.0.0.1")
        num_seats = num_seats or max(spec.nodes.max, rank + 1)
        made_journal.open_launch(self.store, JOB, launch, num_nodes=num_seats)
        node = self.node(launch=launch, machine=machine)
        pipe = NoticePipe(node.directory)
        life = Life(node, store or self.store, self.provider, Job(submission, spec, identity), pipe)
        self.lives.append(life)
        return life

    def membership(self, life):
        """The node's membership, which listens no more when the test is over."""
        self.memberships.append(Membership(life.context))
        return self.memberships[-1]

    def hang(self, *_args, **_kwargs):
        """Hang until the test is over, as a machine does that lost its power; end the thread then."""
        self._is_over.wait()
        raise SystemExit

    def exit_record(self, launch=1, rank=0):
        return codec.decode(self.store.get(keys.exit_record(JOB, launch, rank)), Exit)

    def log(self, life):
        return [record.text for record in life.logs._sink.read(life.stream)]

    def seal(self, node, checkpoint, data=b"weights", *, taken=False, rank=0, world_size=1, **changes):
        """What a session's rank leaves in the arena and the hand-off; returns the seal's path."""
        slot = node.arena / f"slot-{checkpoint.generation}-{rank}-{checkpoint.step % 2}"
        slot.write_bytes(data + b"\0" * 100)
        items = [
            {
                "name": f"model/{rank}",
                "dtype": "uint8",
                "shape": [len(data)],
                "offset": 0,
                "nbytes": len(data),
            }
        ]
        table = [[rank, items]] if world_size == 1 + len(changes.get("relieved", ())) else None
        plan = hashlib.sha256(json.dumps(table, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
        seal = {
            "format": 1, "generation": checkpoint.generation, "step": checkpoint.step, "round": 0, "rank": rank,
            "world_size": world_size, "kind": "interval", "slot": str(slot), "nbytes": len(data), "plan": plan,
            "items": items, "objects": {}, "rank_states": {str(rank): {}}, "stall_seconds": 0.01,
            "boot": this_boot(), "sealed_monotonic": time.monotonic(), **changes,
        }  # fmt: skip
        name = files.SealName(
            checkpoint.generation, checkpoint.step, changes.get("round", 0), rank, taken=taken
        )
        directory = files.seals_directory(node.handoff(checkpoint.generation))
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / (name.taken_name if taken else name.file_name)
        files.write_json(path, seal)
        return path

    def put_part(self, rank, step, *, world_size=2, generation=1, number=0, relieved=()):
        """What a rank's part of a save of several is in the bucket, without a commit.

        Of the relieved ranks' states, the last rank holds all.
        """
        data, checkpoint = b"weights", CheckpointId(generation, step)
        items = [
            {"name": f"model/{one}", "dtype": "uint8", "shape": [len(data)], "offset": 0, "nbytes": len(data)}
            for one in range(world_size)
        ]
        table = json.dumps(
            [[one, [item]] for one, item in enumerate(items) if one not in relieved],
            sort_keys=True,
            separators=(",", ":"),
        )
        plan = hashlib.sha256(table.encode()).hexdigest()
        node = self.node(machine="elsewhere")  # where no courier finds the seal
        changes = {"plan": plan, "round": number, "relieved": relieved}
        if rank == world_size - 1:
            changes["rank_states"] = {str(one): {} for one in (rank, *relieved)}
        path = self.seal(node, checkpoint, data, rank=rank, world_size=world_size, **changes)
        raw = path.read_bytes()
        path.unlink()
        upload_session(self.store, JOB, raw, data, sealed_at=datetime.now(timezone.utc))

    def commit(self, checkpoint, data=b"weights", **options):
        """A session's checkpoint in the bucket and in the journal; its generation is started if it was not."""
        node = self.node(machine="elsewhere")
        path = self.seal(node, checkpoint, data)
        raw = path.read_bytes()
        path.unlink()
        upload_session(self.store, JOB, raw, data, sealed_at=datetime.now(timezone.utc), **options)
        return made_journal.commit(self.store, JOB, checkpoint)

    def commit_sharded(self, checkpoint, datas, *, num_shards=None):
        """A session's checkpoint of one tensor, of which each rank has sent a shard; its bytes are ``datas``.

        ``num_shards``: the other ranks' bytes are tensors of their own.
        """
        num_shards = len(datas) if num_shards is None else num_shards
        total = sum(map(len, datas[:num_shards]))
        node, table = self.node(machine="elsewhere"), []
        for rank, data in enumerate(datas):
            item = {
                "name": "model/w" if rank < num_shards else f"model/{rank}",
                "dtype": "uint8", "shape": [len(data)], "offset": 0, "nbytes": len(data),
            }  # fmt: skip
            if rank < num_shards:
                item["global_shape"], item["global_offset"] = [total], [sum(map(len, datas[:rank]))]
            table.append([rank, [item]])
        plan = hashlib.sha256(json.dumps(table, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
        for rank, data in enumerate(datas):
            path = self.seal(
                node, checkpoint, data, rank=rank, world_size=len(datas), plan=plan, items=table[rank][1]
            )
            raw = path.read_bytes()
            path.unlink()
            upload_session(self.store, JOB, raw, data, sealed_at=datetime.now(timezone.utc))
        return made_journal.commit(self.store, JOB, checkpoint)

    def spoil(self, checkpoint):
        """Flip a byte of the checkpoint's first chunk."""
        key = keys.chunk(JOB, SaveId(checkpoint.generation, checkpoint.step, 0), 0, 0)
        data = bytearray(self.store.get(key))
        data[0] ^= 1
        self.store.put(key, bytes(data))

    def start(self, number=1, restore_from=None, *, launch=1):
        """A generation of node 0."""
        return made_journal.start_generation(self.store, number, restore_from, job_id=JOB, launch=launch)

    def journal(self):
        return Journal(self.store, JOB).read()

    def generations(self):
        return generations_of(self.journal())

    def commits(self):
        """The checkpoints that count and were not deleted, oldest first."""
        return tuple(sorted(retention.standing_checkpoints(self.store, JOB, self.journal())))

    def id(self, generation, step):
        return CheckpointId(generation, step)


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setattr("cloudspot.agent.notices.notice_poller.WAIT_SECONDS", 0.05)
    made = Bench(tmp_path)
    started = []
    begin = subprocess.Popen.__init__

    def note(process, *args, **options):
        begin(process, *args, **options)
        started.append(process)

    staging = []
    start_staging = InputStaging.start

    def note_staging(worker):
        staging.append(worker)
        start_staging(worker)

    monkeypatch.setattr(subprocess.Popen, "__init__", note)
    monkeypatch.setattr(InputStaging, "start", note_staging)
    yield made
    made._is_over.set()
    for worker in staging:  # a late input may still be on its way
        worker._stopped.set()
        worker._join(10.0)
    for membership in made.memberships:
        membership.stop()
    for life in made.lives:
        object.__setattr__(life.context, "retry_until", made.hang)  # ends what still waits for the store
        life.logs._stopped.set()
        life.notices.stop()
        life.heartbeat.stop()
        life.artifacts.stop()
        life.courier._stopped.set()
        if life.courier._directories is not None:
            life.courier._directories.stop()
        for path in life.context.node.directory.glob("generations/*"):
            kill_marked(files.HANDOFF, str(path))
    end = time.monotonic() + 10
    while time.monotonic() < end and any(
        t.name in {"logs", "notice", "notice pipe", "heartbeat", "courier", "retention", "peers", "seek"}
        for t in threading.enumerate()
    ):
        for life in made.lives:  # two agents of one machine share a pipe, and each wakes but one of them
            life.notices.stop()
        time.sleep(0.01)
    # An agent that a test has killed in its thread waits for nothing that it has started.
    for process in started:
        if getattr(process, "returncode", 0) is None and process.poll() is None:
            process.kill()
            process.wait()
    for life in made.lives:
        os.close(life.notices._pipe._reader)
        os.close(life.notices._pipe._writer)
