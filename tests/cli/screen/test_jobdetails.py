"""The tables of one job, however much has come and gone."""

from dataclasses import replace

import pytest
from support.records.made_records import Records

from cloudspot.cli.screen.jobdetails import TABLES, echo_details
from cloudspot.jobstore.layout.records import Phase
from cloudspot.story.report import show_json

NUM_LOST = 40


def many(records):
    """Four nodes, of which one after the other is taken with a notice and replaced, forty times."""
    spec = {"name": "digits", "run": {"entrypoint": "train.py"}, "nodes": {"min": 3, "max": 4}}
    launches, generations, commits = [records.launch(1, intent=records.intent(num_nodes=4))], [], []
    seats = [(1, rank) for rank in range(4)]
    generations.append(records.generation(1, seats=seats, at=20))
    for number in range(1, NUM_LOST + 1):
        at = 1000 * number
        launch, rank = seats.pop(0)
        lost, proof = launches[launch - 1], f"i-{launch}-{rank}"
        came = 1000 * (launch - 1) + 5
        certificate = records.certificate(
            proof, launch=launch, rank=rank, started=came, ended=at, end_reason="reclaimed"
        )
        launches[launch - 1] = replace(
            lost,
            notices={**lost.notices, rank: records.notice(launch=launch, rank=rank, at=at - 30, step=number)},
            certificates={**lost.certificates, proof: certificate},
        )
        new = records.intent(number + 1, at=at - 20, why="notice", stands_in_for=[(launch, rank)])
        slots = {0: records.slot(f"i-{number + 1}-0", at=at + 10)}
        launches.append(records.launch(number + 1, intent=new, slots=slots))
        seats.append((number + 1, 0))
        commits.append(records.commit(number, number, at=at - 10))
        generations.append(
            records.generation(number + 1, seats=seats, restored=(number, number), at=at + 20, why="joined")
        )
    phases = (Phase(state="ready", generation=0, at=records.at(1000 * NUM_LOST + 15)),)
    beat = records.heartbeat(instance_id=f"i-{NUM_LOST + 1}-0", generation=NUM_LOST + 1, phases=phases)
    launches[-1] = replace(launches[-1], heartbeats={0: beat})
    history = records.history(
        *launches,
        submission=records.change(records.history().submission, spec=spec),
        generations=tuple(generations),
        commits=tuple(commits),
    )
    return show_json(history, records.at(1000 * NUM_LOST + 500))


@pytest.fixture
def tables(capsys):
    """``tables(value)``: the lines of each table by the first word of its head."""

    def show(value, **options):
        echo_details(value, TABLES, **options)
        parts = capsys.readouterr().out.strip().split("\n\n")
        return {part.split(None, 1)[0]: part.splitlines()[1:] for part in parts}

    return show


def test_a_job_with_forty_nodes_come_and_gone_reads_on_a_screen(tables):
    found = tables(many(Records()))
    assert list(found) == ["where", "LAUNCH", "NODE", "GENERATION", "NOTICE", "MACHINE"]
    assert sum(len(lines) + 2 for lines in found.values()) <= 60
    assert [line.split()[0] for line in found["LAUNCH"]] == ["38", "39", "40", "41", "and"]
    assert found["LAUNCH"][-1] == (
        "and 37 older launches of 40 nodes: 37 reclaimed; 1d 18h, 42.72 USD (--all shows them)"
    )
    assert [line.split()[0] for line in found["NODE"]] == ["38.0", "39.0", "40.0", "41.0", "and"]
    assert found["NODE"][-1] == "and 40 older nodes: 40 reclaimed (--all shows them)"
    assert found["GENERATION"][-2].split()[:2] == ["41", "38.0"]
    assert found["GENERATION"][-1].startswith("and 37 older generations: 36 joined, 1 first; ")
    assert found["NOTICE"][-1] == "and 36 older notices: 36 with a checkpoint (--all shows them)"
    machines = [" ".join(line.split()) for line in found["MACHINE"]]
    assert machines[4].startswith("40 older ")
    assert machines[5].startswith("total ")
    assert machines[6].startswith("of it: starting ")
    assert machines[7] == "of it: standby 5.0s 0.0014 USD"


def test_all_of_it_is_shown_where_that_is_asked_for(tables):
    found = tables(many(Records()), show_all=True)
    assert {name: len(lines) for name, lines in found.items() if name not in {"where", "MACHINE"}} == {
        "LAUNCH": 41,
        "NODE": 44,
        "GENERATION": 41,
        "NOTICE": 40,
    }
    launch = found["LAUNCH"][1]
    assert launch.split()[:2] == ["2", "1"]
    assert launch.endswith("  notice, for 1.0")


def test_what_still_runs_is_shown_however_old_it_is(tables):
    value = many(Records())
    for table in ("launches", "nodes", "ledger"):
        value[table][0] = {**value[table][0], "outcome": None, "ended": None, "state": "running"}
    found = tables(value)
    assert [line.split()[0] for line in found["LAUNCH"]] == ["1", "38", "39", "40", "41", "and"]
    assert found["NODE"][0].split()[0] == "1.0"
    assert found["MACHINE"][0].split()[0] == "i-1-0"


def test_nodes_that_came_one_after_the_other_need_no_table(tables):
    records = Records()
    history = records.history(records.launch(1, outcome="reclaimed"), records.launch(2))
    assert "NODE" not in tables(show_json(history, records.at(200)))
    overlapping = records.history(records.launch(1), records.launch(2))
    assert len(tables(show_json(overlapping, records.at(200)))["NODE"]) == 2
