"""``cloudspot checkpoints``."""

from cloudspot.jobstore import keys


def test_the_newest_comes_first(jobs):
    found = jobs.run_json("checkpoints", jobs.reclaimed_and_finished())
    assert [(each["id"], each["generation"], each["step"]) for each in found] == [
        ("2-100", 2, 100),
        ("1-40", 1, 40),
    ]
    assert {(each["kind"], each["bytes"], each["num_parts"], each["verified"]) for each in found} == {
        ("directory", 1000, 1, None)
    }


def test_verify_reads_the_chunks(jobs):
    found = jobs.run_json("checkpoints", jobs.reclaimed_and_finished(), "--verify")
    assert [each["verified"] for each in found] == [True, True]


def test_a_flipped_bit_is_found_and_the_others_are_still_checked(jobs):
    jobs.reclaimed_and_finished()
    key = keys.chunk("digits-7k3f", 2, 100, 0, 0)
    data = bytearray(jobs.store.get(key))
    data[500] ^= 1
    jobs.store.put(key, data)
    found = jobs.run_json("checkpoints", "digits-7k3f", "--verify", status=1)
    assert [each["verified"] for each in found] == [False, True]
    assert found[0]["error"]
    assert found[1]["error"] is None


def test_a_malformed_manifest_is_shown_even_without_verify(jobs):
    jobs.reclaimed_and_finished()
    jobs.store.put(keys.commit("digits-7k3f", 2, 100), b"{")
    found = jobs.run_json("checkpoints", "digits-7k3f", status=1)
    assert [each["verified"] for each in found] == [False, None]
    assert jobs.run("checkpoints", "digits-7k3f", status=1).stdout.splitlines()[1].startswith("2-100")


def test_text_is_a_table(jobs):
    lines = jobs.run("checkpoints", jobs.reclaimed_and_finished(), "--verify").stdout.splitlines()
    assert lines[0].split() == ["CHECKPOINT", "STEP", "SIZE", "PARTS", "KIND", "COMMITTED", "STATUS"]
    assert lines[1].split()[:6] == ["2-100", "100", "1000", "B", "1", "directory"]
    assert lines[1].endswith("verified")


def test_a_job_without_one_says_so(jobs):
    jobs.submit("new-1")
    assert jobs.run("checkpoints", "new-1").stdout == "job new-1 has no checkpoint\n"
    assert jobs.run_json("checkpoints", "new-1") == []
