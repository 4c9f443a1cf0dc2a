"""What the agent measures of its machine."""

import json
from datetime import timedelta

import pytest
from support.records.jobclock import at

from cloudspot.agent.training.watching.utilization import (
    Counters,
    Gpus,
    Look,
    average,
    link_speed,
    read_counters,
)
from cloudspot.decoding import decode
from cloudspot.jobstore.layout.records import Utilization

STAT = "cpu  100 10 50 700 40 5 5 90 7 3\ncpu0 1 2 3 4\n"
MEMORY = "MemTotal:  1000 kB\nMemFree:  1 kB\nMemAvailable:  250 kB\n"
DISKS = """ 259 0 nvme0n1 1 0 100 0 1 0 200 0 0 0 0
 259 1 nvme0n1p1 1 0 100 0 1 0 200 0 0 0 0
 253 0 dm-0 1 0 100 0 1 0 200 0 0 0 0
"""
NETWORK = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 999 1 0 0 0 0 0 0 999 1 0 0 0 0 0 0
  eth0:1000 1 0 0 0 0 0 0 2000 1 0 0 0 0 0 0
"""


@pytest.fixture
def machine(tmp_path):
    """``/proc`` and ``/sys`` of a machine with one disk and one network interface."""
    proc, sys = tmp_path / "proc", tmp_path / "sys"
    (proc / "net").mkdir(parents=True)
    (proc / "stat").write_text(STAT)
    (proc / "meminfo").write_text(MEMORY)
    (proc / "diskstats").write_text(DISKS)
    (proc / "net" / "dev").write_text(NETWORK)
    (sys / "block" / "nvme0n1" / "device").mkdir(parents=True)
    (sys / "block" / "dm-0").mkdir()
    (sys / "class" / "net" / "eth0").mkdir(parents=True)
    (sys / "class" / "net" / "eth0" / "speed").write_text("1000\n")
    return proc, sys


def test_the_kernels_counters_are_read_once_for_each_disk_and_without_loopback(machine):
    found = read_counters(*machine)
    assert found == Counters(
        busy_and_all=(260, 1000), disk=(51_200, 102_400), network={"eth0": (1000, 2000)}, memory=0.75
    )
    assert link_speed("eth0", machine[1]) == 125_000_000
    assert link_speed("wlan0", machine[1]) is None


def test_a_system_that_has_none_of_it_is_not_measured_and_nothing_fails(tmp_path):
    assert read_counters(tmp_path, tmp_path) == Counters()
    (tmp_path / "stat").write_text("cpu  a b\n")
    (tmp_path / "meminfo").write_text("MemTotal: 0 kB\nMemAvailable: 0 kB\n")
    assert read_counters(tmp_path, tmp_path) == Counters()


def test_this_machine_is_measured():
    found = read_counters()
    assert found.busy_and_all is not None
    assert 0 < found.memory < 1


def look(seconds, *, busy, ticks, step, network=(0, 0), waited=None, gpus=()):
    counters = Counters((busy, ticks), (1000 * seconds, 0), {"eth0": network}, 0.5)
    return Look(float(seconds), counters, gpus, 1, step, {} if waited is None else {0: 0, 1: waited})


def test_an_average_is_what_was_done_between_the_first_look_and_the_last():
    looks = [
        look(10, busy=100, ticks=1000, step=50, waited=0, gpus=[(1.0, 0.1), (1.0, 0.1)]),
        look(15, busy=150, ticks=1200, step=60, waited=10**9, gpus=[(0.5, 0.2), (0.0, 0.3)]),
        look(
            20,
            busy=400,
            ticks=1400,
            step=70,
            network=(50, 1000),
            waited=4 * 10**9,
            gpus=[(1.0, 0.4), (0.0, 0.5)],
        ),
    ]
    found = average(looks, at(1), speed=lambda _name: 1000.0)
    assert found == Utilization(
        at=at(1), seconds=10.0, step=70, cpu=0.75, memory=0.5, gpus=(0.75, 0.0), gpu_memory=(0.4, 0.5),
        disk_read=1000.0, disk_written=0.0, received=5.0, sent=100.0, network=0.1, step_seconds=0.5, data_wait=0.4,
    )  # fmt: skip


def test_what_is_not_known_is_left_out_and_a_counter_that_was_reset_counts_nothing():
    looks = [look(0, busy=900, ticks=1000, step=5), look(5, busy=10, ticks=20, step=5)]
    found = average(looks, at(1), speed=lambda _name: None)
    assert (found.cpu, found.step_seconds, found.data_wait, found.network, found.gpus) == (
        None,
        None,
        None,
        None,
        (),
    )


def test_a_record_of_it_is_read_as_it_was_written():
    found = average(
        [look(0, busy=0, ticks=10, step=0), look(5, busy=5, ticks=20, step=9)],
        at(1) + timedelta(seconds=0.5),
        speed=lambda _name: None,
    )
    import msgspec

    text = msgspec.json.encode(found)
    assert decode(text, Utilization) == found
    assert "gpus" not in json.loads(text)


def test_without_nvidias_library_there_are_no_gpus(monkeypatch):
    def refuse(_name):
        raise OSError("not there")

    monkeypatch.setattr("ctypes.CDLL", refuse)
    assert list(Gpus().sample()) == []


class Nvml:
    """NVIDIA's library as its reference has it: a status of 0, and what was asked for in the argument."""

    def __init__(self, gpus, *, status=0):
        self.gpus, self.status = gpus, status

    def nvmlInit_v2(self):  # noqa: N802 - as NVIDIA names it
        return self.status

    def nvmlDeviceGetCount_v2(self, count):  # noqa: N802 - as NVIDIA names it
        count._obj.value = len(self.gpus)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, number, handle):  # noqa: N802 - as NVIDIA names it
        handle._obj.value = number + 1
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle, rates):  # noqa: N802 - as NVIDIA names it
        percent, _ = self.gpus[handle.value - 1]
        if percent is None:
            return 3  # not supported
        rates._obj[0], rates._obj[1] = percent, 7
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle, memory):  # noqa: N802 - as NVIDIA names it
        _, used = self.gpus[handle.value - 1]
        memory._obj[0], memory._obj[1], memory._obj[2] = 80 << 30, (80 - used) << 30, used << 30
        return 0


def test_each_gpu_that_answers_is_sampled(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda _name: Nvml([(97, 60), (None, 0), (3, 20)]))
    assert list(Gpus().sample()) == [(0.97, 0.75), (0.03, 0.25)]
    monkeypatch.setattr("ctypes.CDLL", lambda _name: Nvml([(97, 60)], status=9))  # no driver
    assert list(Gpus().sample()) == []


def test_a_loader_that_was_first_asked_in_between_counts_from_its_start():
    looks = [look(0, busy=0, ticks=10, step=0), look(10, busy=5, ticks=20, step=9, waited=5 * 10**9)]
    assert average(looks, at(1), speed=lambda _name: None).data_wait == 0.5
