"""What the driver's function makes of the events of Function Compute."""

from __future__ import annotations

import json

from cloudspot.plugin.functionchecks import NOTICE_SECONDS
from cloudspot_aliyun import functionserver
from cloudspot_aliyun.functionserver import answer, event_of


def test_a_timers_payload_is_the_event():
    timer = {"triggerTime": "2026-11-24T17:00:00Z", "triggerName": "schedule"}
    assert event_of(json.dumps({**timer, "payload": '{"reap": true}'}).encode()) == {"reap": True}
    assert event_of(json.dumps({**timer, "payload": ""}).encode()) == {}
    assert event_of(b"") == {}
    assert event_of(b'{"wait_seconds": 2}') == {"wait_seconds": 2}


def test_an_interruption_waits_for_the_node_and_may_come_in_a_list():
    told = {"type": "ecs:Instance:PreemptibleInstanceInterruption", "source": "acs.ecs", "data": {}}
    assert event_of(json.dumps(told).encode()) == {"wait_seconds": NOTICE_SECONDS}
    assert event_of(json.dumps([told, told]).encode()) == {"wait_seconds": NOTICE_SECONDS}
    assert event_of(b"[]") == {}
    assert functionserver.NOTICE_SECONDS == NOTICE_SECONDS


def test_whatever_the_handler_raises_is_answered(capsys):
    assert answer(b"{}", "no_such_module.handle") == (
        True,
        {"errorMessage": "No module named 'no_such_module'", "log": ""},
    )
    assert answer(b"nonsense", "json.dumps")[0]
    assert answer(b'{"a": 1}', "json.dumps") == (False, '{"a": 1}')
    assert "ModuleNotFoundError" in capsys.readouterr().out
