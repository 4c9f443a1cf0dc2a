"""What a run says to the open questions, by what it has seen: as expected, otherwise, or why not."""

import pytest

from cloudspot_prove.answers import Seen, answer_all
from cloudspot_prove.recording import Exchange
from cloudspot_prove.run_record import Began, StepEnded


def seen(provider, *ended, exchanges=()):
    told = Began(
        run="abcde",
        provider=provider,
        store_url="s3://b/prove-abcde",
        settings=(),
        max_cost=2.0,
        currency="USD",
        train_seconds=60.0,
        steps=("check", "price", "launch"),
        image_has_torch=False,
        gpu=None,
        other_region=None,
        key="00",
        at=0.0,
    )
    return Seen(told, {one.step: one for one in ended}, exchanges)


def passed(step, **facts):
    return StepEnded(step=step, status="passed", facts=facts)


def witness(*facts):
    return [{"witness": [{"rank": rank, "fact": fact, "value": value} for rank, fact, value in facts]}]


def call(action, answer=None, *, at=1.0, code="", step="launch", status=200, request=None):
    return Exchange(
        step=step,
        at=at,
        service="x",
        action=action,
        request=request or {},
        answer=answer,
        status=status,
        code=code,
        seconds=0.1,
    )


def repeats(*answers):
    return passed("repeat", repeats=list(answers))


IN_QUOTA = {"error": {"errors": [{"code": "QUOTA_EXCEEDED"}]}}
SAME = {"after_seconds": 40.0, "refused": "", "extra": 0, "same": True}
MORE = {"after_seconds": 40.0, "refused": "", "extra": 1, "same": False}
TAKEN = {"after_seconds": 40.0, "refused": "ProvisionError", "extra": 0, "same": False}


def machines(*states):
    return {"Reservations": [{"Instances": [{"State": {"Name": state}} for state in states]}]}


def made(name):
    return {"Instances": [{"InstanceId": name}]}


def listed(*names):
    return {"Reservations": [{"Instances": [{"InstanceId": one} for one in names]}]}


NEVER_SHOWN = (
    call("RunInstances", made("~9"), at=1.0),
    call("DescribeInstances", listed(), at=900.0),
)
"""It was ended at once."""
LAG = (
    call("RunInstances", made("~1"), at=1.0),
    call("DescribeInstances", listed(), at=5.0),
    call("DescribeInstances", listed("~2"), at=40.0),
    call("DescribeInstances", listed("~1", "~2"), at=50.0),
)
BULK = "POST /compute/v1/projects/~p/regions/us-central1/instances/bulkInsert"
NOTICE = {"body": {"instanceProperties": {"scheduling": {"preemptionNoticeDuration": {"seconds": 120}}}}}
POD = "GET /api/v1/namespaces/~n/pods"


def pods(reason, code):
    ended = {"terminated": {"reason": reason, "exitCode": code}}
    return {"items": [{"status": {"containerStatuses": [{"state": ended}]}}]}


CASES = {
    "aws-launch-index": [
        (
            "as expected",
            seen("aws", passed("two-nodes", jobs=witness((0, "launch-index", 0), (1, "launch-index", 1)))),
        ),
        (
            "otherwise",
            seen("aws", passed("two-nodes", jobs=witness((0, "launch-index", 0), (1, "launch-index", 0)))),
        ),
    ],
    "aws-client-token": [
        ("as expected", seen("aws", repeats(SAME, SAME))),
        ("otherwise", seen("aws", repeats(SAME, MORE))),
    ],
    "gcp-request-id": [
        ("as expected", seen("gcp", repeats(SAME))),
        ("otherwise", seen("gcp", repeats(SAME, TAKEN))),
    ],
    "aws-create-once": [
        ("as expected", seen("aws", passed("check", creates_once=True))),
        ("otherwise", seen("aws", StepEnded(step="check", status="failed", facts={"creates_once": False}))),
    ],
    "aws-price-of-disks": [
        ("as expected", seen("aws", passed("price", price_parts="machine 0.03, disk 0.007"))),
        ("otherwise", seen("aws", passed("price", price_parts="machine 0.03, disk not counted"))),
    ],
    "aws-new-profile": [
        ("as expected", seen("aws", exchanges=[call("RunInstances", made("~1"))])),
        (
            "otherwise",
            seen(
                "aws",
                exchanges=[
                    call("RunInstances", at=1.0, code="InvalidParameterValue", status=400),
                    call("RunInstances", at=60.0, code="InvalidParameterValue", status=400),
                    call("RunInstances", made("~1"), at=70.0),
                ],
            ),
        ),
    ],
    "aws-notice": [
        (
            "as expected",
            seen(
                "aws",
                passed("notice", jobs=witness((0, "notice-has-time", True), (0, "notice-seconds", 119))),
            ),
        ),
        (
            "otherwise",
            seen(
                "aws",
                passed("notice", jobs=witness((0, "notice-has-time", False), (0, "notice-seconds", None))),
            ),
        ),
        (
            "otherwise",
            seen(
                "aws", passed("notice", jobs=witness((0, "notice-has-time", True), (0, "notice-seconds", 20)))
            ),
        ),
    ],
    "aws-shutdown": [
        (
            "as expected",
            seen("aws", exchanges=[call("DescribeInstances", machines("running", "terminated"))]),
        ),
        ("otherwise", seen("aws", exchanges=[call("DescribeInstances", machines("stopped"))])),
    ],
    "aws-policies": [
        ("as expected", seen("aws", passed("launch"))),
        (
            "otherwise",
            seen("aws", passed("launch"), exchanges=[call("CreateTags", code="UnauthorizedOperation")]),
        ),
    ],
    "aws-metadata-tags": [
        (
            "as expected",
            seen("aws", passed("two-nodes", jobs=witness((0, "tags", []), (0, "tags", ["MASTER_ADDR"])))),
        ),
        ("otherwise", seen("aws", passed("two-nodes", jobs=witness((0, "tags", ["cloudspot-job"]))))),
    ],
    "aws-listing": [
        ("as expected", seen("aws", exchanges=[LAG[0], LAG[3]])),
        ("otherwise", seen("aws", exchanges=LAG)),
        ("as expected", seen("aws", exchanges=[NEVER_SHOWN[0], LAG[0], LAG[3], NEVER_SHOWN[1]])),
    ],
    "aws-quota": [
        ("as expected", seen("aws", passed("two-nodes"))),
        ("otherwise", seen("aws", exchanges=[call("RunInstances", code="MaxSpotInstanceCountExceeded")])),
    ],
    "gcp-preemption-notice": [
        ("as expected", seen("gcp", exchanges=[call(BULK, {}, request=NOTICE)])),
        ("otherwise", seen("gcp", exchanges=[call(BULK, code="invalid", request=NOTICE), call(BULK, {})])),
    ],
    "gcp-quota": [
        ("as expected", seen("gcp", passed("two-nodes"))),
        ("otherwise", seen("gcp", exchanges=[call("GET /operations/x", IN_QUOTA)])),
        (
            "otherwise",
            seen(
                "gcp", exchanges=[call("GET /operations", {"items": {"zones/a": {"operations": [IN_QUOTA]}}})]
            ),
        ),
    ],
    "gcp-self-delete": [
        ("as expected", seen("gcp", passed("alone", end_seconds=4.0))),
        (
            "otherwise",
            seen(
                "gcp",
                passed("alone", end_seconds=4.0),
                exchanges=[
                    call(
                        "GET /compute/v1/projects/~p/aggregated/instances",
                        {"items": {"~z": {"instances": [{"status": "TERMINATED"}]}}},
                    )
                ],
            ),
        ),
    ],
    "gcp-new-account": [
        ("as expected", seen("gcp", exchanges=[call(BULK, {})])),
        (
            "otherwise",
            seen(
                "gcp",
                exchanges=[
                    call(BULK, code="invalid", at=1.0),
                    call(BULK, code="invalid", at=50.0),
                    call(BULK, {}, at=60.0),
                ],
            ),
        ),
    ],
    "aliyun-host-names": [
        (
            "as expected",
            seen("aliyun", passed("two-nodes", jobs=witness((0, "host-index", 0), (1, "host-index", 1)))),
        ),
        (
            "otherwise",
            seen("aliyun", passed("two-nodes", jobs=witness((0, "host-index", 0), (1, "host-index", 2)))),
        ),
    ],
    "aliyun-notice": [
        ("as expected", seen("aliyun", passed("notice", jobs=witness((0, "notice-seconds", 299))))),
        ("otherwise", seen("aliyun", passed("notice", jobs=witness((0, "notice-seconds", 59))))),
    ],
    "aliyun-self-release": [
        ("as expected", seen("aliyun", passed("alone", end_seconds=4.0))),
        (
            "otherwise",
            seen(
                "aliyun",
                exchanges=[call("DescribeInstances", {"Instances": {"Instance": [{"Status": "Stopped"}]}})],
            ),
        ),
    ],
    "kubernetes-kubelet": [
        ("as expected", seen("kubernetes", passed("launch"), exchanges=[call(POD, pods("Completed", 0))])),
        ("otherwise", seen("kubernetes", exchanges=[call(POD, pods("ContainerStatusUnknown", 137))])),
    ],
    "kubernetes-grace": [
        ("otherwise", seen("kubernetes", passed("notice", steps_lost=9, jobs=[{"notices": []}]))),
        (
            "as expected",
            seen(
                "kubernetes",
                passed(
                    "notice",
                    steps_lost=0,
                    jobs=[{"notices": [{"seconds_ahead": 60.0, "commit_seconds": 2.0}]}],
                ),
            ),
        ),
        (
            "otherwise",
            seen(
                "kubernetes",
                passed(
                    "notice",
                    steps_lost=9,
                    jobs=[{"notices": [{"seconds_ahead": 60.0, "commit_seconds": None}]}],
                ),
            ),
        ),
    ],
}


@pytest.mark.parametrize(
    ("question", "verdict", "run"),
    [(question, verdict, run) for question, cases in CASES.items() for verdict, run in cases],
)
def test_an_answer_follows_from_what_was_seen(question, verdict, run):
    answer = answer_all(run)[question][1]
    assert answer.verdict == verdict
    assert answer.text
    assert answer.evidence


@pytest.mark.parametrize("provider", ["aliyun", "aws", "gcp", "kubernetes"])
def test_a_run_that_has_seen_nothing_answers_nothing_and_says_why(provider):
    for _, answer in answer_all(seen(provider)).values():
        assert answer.verdict == "not answered"
        assert answer.text


def test_a_step_that_failed_is_the_reason():
    failed = StepEnded(step="two-nodes", status="failed", why="`run` ended with status 1")
    answer = answer_all(seen("aws", failed))["aws-launch-index"][1]
    assert answer.text == "the step two-nodes was failed: `run` ended with status 1"
