"""AWS Lambda as the host of a driver: EventBridge runs it on a schedule, and at EC2's notices.

Source: Lambda developer guide, "Lambda quotas", "Lambda runtimes", "Execution role" and the API reference;
EventBridge user guide, "Rate expressions", and EC2 user guide, "Spot Instance interruption notices" and "EC2
instance rebalance recommendations" (checked 2026-11).
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import cloudspot
from cloudspot.decoding import whole_number
from cloudspot.errors import CloudspotError
from cloudspot.interfaces import FunctionHost
from cloudspot.model import REAP_EVENT, DriverFunction, FunctionStatus
from cloudspot.plugin import machinetags
from cloudspot.plugin.answers import moment, readable
from cloudspot.plugin.functionchecks import (
    LACKS_RIGHTS,
    NOTICE_SECONDS,
    PASS_SECONDS,
    FunctionLimits,
    bucket_of,
    once_effective,
    passes_a_month,
    whole_minutes,
)
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.errors import ERRORS, ignored
from cloudspot_aws.permissions import DIRECTORY
from cloudspot_aws.tags import MAX_VALUE, to_list

MEMORY_MIB: Final = 512
TIMEOUT_SECONDS: Final = 300
RUNTIME: Final = f"python{sys.version_info[0]}.{sys.version_info[1]}"
LIMITS: Final = FunctionLimits(
    host="AWS Lambda",
    runtime=f"Lambda's {RUNTIME}",
    machines={"x86_64": "x86-64", "aarch64": "arm64"},
    # Amazon Linux 2; from Python 3.12 on, Amazon Linux 2023.
    glibc={(3, 10): (2, 26), (3, 11): (2, 26), (3, 12): (2, 34), (3, 13): (2, 34), (3, 14): (2, 34)},
    max_packed_bytes=50_000_000,  # the limit for a zip in the request
    max_unpacked_bytes=250 << 20,
)
_ARCHITECTURES: Final = {"x86_64": "x86_64", "aarch64": "arm64"}
USD_A_GB_SECOND: Final = 0.0000166667
USD_A_CALL: Final = 0.0000002
"""Lambda's prices on x86 in us-east-1, from memory (AWS Lambda pricing); other regions may be more expensive.
"""
ROLE_SECONDS: Final = 60.0
"""How long Lambda may not yet know a new role, in seconds. AWS promises no bound; 10 s are usual."""
LOG_CHARACTERS: Final = 500
_VERSION: Final = "CLOUDSPOT_DRIVER_VERSION"
_TRUST: Final = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": "lambda.amazonaws.com"},
                "Action": "sts:AssumeRole",
            }
        ],
    }
)
_NOTICES: Final = json.dumps(
    {
        "source": ["aws.ec2"],
        "detail-type": ["EC2 Spot Instance Interruption Warning", "EC2 Instance Rebalance Recommendation"],
    }
)
_POLICY: Final = "cloudspot-driver"
_REAP_POLICY: Final = "cloudspot-reap"
LOG_PREFIX: Final = "/aws/lambda/"
_NOT_IN_TAGS: Final = re.compile(r"[^\w\s+\-=.:/@]")
"""Characters that some services do not allow in tags (IAM user guide, "Tags for IAM resources"; checked
2026-11)."""


class LambdaHost(FunctionHost):
    """Functions in one account and region. The name of each resource begins with its function's name."""

    def __init__(self, clients: AwsClients, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """Do no I/O; ``sleep`` is used to wait until AWS knows a new role."""
        self._clients = clients
        self._sleep = sleep

    def plan(self, function: DriverFunction) -> Sequence[str]:
        """Return the resources to make and their cost; see FunctionHost."""
        minutes = _minutes(function)
        bucket = _checked_bucket(function)
        usd = passes_a_month(minutes) * (PASS_SECONDS * MEMORY_MIB / 1024 * USD_A_GB_SECOND + USD_A_CALL)
        return (
            f"Lambda function {function.name} in {self._clients.region}: {RUNTIME}, {MEMORY_MIB} MiB",
            LIMITS.size_of(function),
            f"EventBridge rules: every {_rate(minutes)[5:-1]}, and when EC2 is about to take a spot machine",
            f"role {self._role(function.name)} with the plugin's policy-driver.json for {bucket}",
            *(("once a day `cloudspot reap`, with the plugin's policy-reap.json",) if function.reaps else ()),
            f"about {usd:.2f} USD a month at {PASS_SECONDS:g} s a pass, and the store's requests",
        )

    def deploy(self, function: DriverFunction) -> None:
        """Make or update the driver, and run it once; see FunctionHost."""
        _checked_bucket(function)
        minutes = _minutes(function)
        with ERRORS.translated("deploying the driver"):
            role = self._make_role(function)
            self._make_log(function)
            arn = self._make_function(function, role)
            self._make_rule(function, "", arn, {}, ScheduleExpression=_rate(minutes))
            wait = {"wait_seconds": NOTICE_SECONDS}
            self._make_rule(function, "-notices", arn, wait, EventPattern=_NOTICES)
            if function.reaps:
                self._make_rule(function, "-reap", arn, REAP_EVENT, ScheduleExpression="rate(1 day)")
            else:
                self.remove_piece("rule", f"{function.name}-reap")
            self._try(function.name)

    def status(self, name: str) -> FunctionStatus | None:
        """Return the state that Lambda and EventBridge report; see FunctionHost."""
        with ERRORS.translated("asking for the driver"):
            try:
                described = self._lambda.get_function(FunctionName=name)["Configuration"]
            except self._lambda.exceptions.ResourceNotFoundException:
                return None
            every: float | None = None
            with ignored("ResourceNotFoundException"):
                rule = self._events.describe_rule(Name=name)
                every = _seconds(rule["ScheduleExpression"]) if rule["State"] == "ENABLED" else None
        return FunctionStatus(
            where=described["FunctionArn"],
            state=described.get("State", "Active"),
            every_seconds=every,
            version=described.get("Environment", {}).get("Variables", {}).get(_VERSION, "unknown"),
            # In UTC; Python cannot parse the rest of the text.
            changed_at=moment(str(described["LastModified"])[:19]),
        )

    def remove(self, name: str) -> Sequence[str]:
        """Remove rules, function, role and log; see FunctionHost."""
        pieces = [
            *(("rule", f"{name}{suffix}") for suffix in ("", "-notices", "-reap")),
            ("function", name),
            ("role", self._role(name)),
            ("log", LOG_PREFIX + name),
        ]
        return [f"{kind} {one}" for kind, one in pieces if self.remove_piece(kind, one)]

    def remove_piece(self, kind: str, name: str) -> bool:
        """Remove a rule, function, role or log; return whether it existed."""
        removers: Mapping[str, Callable[[str], object]] = {
            "rule": self._remove_rule,
            "function": lambda name: self._lambda.delete_function(FunctionName=name),
            "role": self._remove_role,
            "log": lambda name: self._clients.client("logs").delete_log_group(logGroupName=name),
        }
        with (
            ERRORS.translated(f"removing the driver's {kind} {name}"),
            ignored("ResourceNotFoundException", "NoSuchEntity"),
        ):
            removers[kind](name)
            return True
        return False

    def _remove_rule(self, name: str) -> None:
        self._events.remove_targets(Rule=name, Ids=["driver"])
        self._events.describe_rule(Name=name)  # DeleteRule does not report whether the rule existed
        self._events.delete_rule(Name=name)

    def _remove_role(self, name: str) -> None:
        iam = self._clients.client("iam")
        for policy in (_POLICY, _REAP_POLICY):
            with ignored("NoSuchEntity"):
                iam.delete_role_policy(RoleName=name, PolicyName=policy)
        iam.delete_role(RoleName=name)

    def _role(self, name: str) -> str:
        """Return the role's name, which contains the region because roles belong to the whole account."""
        return f"{name}-{self._clients.region}"

    @property
    def _lambda(self) -> Any:
        return self._clients.client("lambda", read_timeout=TIMEOUT_SECONDS + 10)

    @property
    def _events(self) -> Any:
        return self._clients.client("events")

    def _make_role(self, function: DriverFunction) -> str:
        iam, name = self._clients.client("iam"), self._role(function.name)
        with ignored("EntityAlreadyExists"):
            iam.create_role(
                RoleName=name,
                AssumeRolePolicyDocument=_TRUST,
                Description="cloudspot: drives jobs on a schedule",
                Tags=_tag_list(function),
            )
        self._put_policy(name, _POLICY, "policy-driver.json", function)
        if function.reaps:
            self._put_policy(name, _REAP_POLICY, "policy-reap.json", function)
        else:
            with ignored("NoSuchEntity"):
                iam.delete_role_policy(RoleName=name, PolicyName=_REAP_POLICY)
        return str(iam.get_role(RoleName=name)["Role"]["Arn"])

    def _put_policy(self, role: str, name: str, file: str, function: DriverFunction) -> None:
        text = (DIRECTORY / file).read_text(encoding="utf-8")
        document = text.replace("BUCKET", _checked_bucket(function))
        self._clients.client("iam").put_role_policy(RoleName=role, PolicyName=name, PolicyDocument=document)

    def _make_log(self, function: DriverFunction) -> None:
        """Make the function's log group with its tag; Lambda would make the group without one."""
        with ignored("ResourceAlreadyExistsException"):
            self._clients.client("logs").create_log_group(
                logGroupName=LOG_PREFIX + function.name, tags=_tags(function)
            )

    def _make_function(self, function: DriverFunction, role: str) -> str:
        client, name = self._lambda, function.name
        settings = {
            "FunctionName": name,
            "Role": role,
            "Handler": function.handler,
            "Runtime": RUNTIME,
            "Timeout": TIMEOUT_SECONDS,
            "MemorySize": MEMORY_MIB,
            "Description": f"cloudspot: drives the jobs of {function.store_url}"[:256],
            "Environment": {"Variables": {**function.environment, _VERSION: cloudspot.__version__}},
        }
        architectures = [_ARCHITECTURES[platform.machine()]]
        try:
            existing = client.get_function(FunctionName=name)["Configuration"]
        except client.exceptions.ResourceNotFoundException:
            code = {"ZipFile": function.archive}
            existing = self._once_effective(
                lambda: client.create_function(
                    **settings, Code=code, Architectures=architectures, Tags=_tags(function)
                ),
                kind=client.exceptions.InvalidParameterValueException,
                is_new=lambda error: "role" in str(error).lower(),
            )
            client.get_waiter("function_active_v2").wait(FunctionName=name)
        else:
            sha256 = b64encode(hashlib.sha256(function.archive).digest()).decode()
            if existing["CodeSha256"] != sha256:
                client.update_function_code(
                    FunctionName=name, ZipFile=function.archive, Architectures=architectures
                )
                client.get_waiter("function_updated_v2").wait(FunctionName=name)
            client.update_function_configuration(**settings)
            client.get_waiter("function_updated_v2").wait(FunctionName=name)
        # A failed pass is not retried, because the next one does its work.
        client.put_function_event_invoke_config(FunctionName=name, MaximumRetryAttempts=0)
        return str(existing["FunctionArn"])

    def _once_effective(self, call: Callable[[], Any], **waits: Any) -> Any:
        return once_effective(call, within_seconds=ROLE_SECONDS, sleep=self._sleep, **waits)

    def _make_rule(
        self, function: DriverFunction, suffix: str, arn: str, event: Mapping[str, float], **when: str
    ) -> None:
        name = function.name + suffix
        rule = self._events.put_rule(
            Name=name,
            State="ENABLED",
            Description="cloudspot: runs the driver",
            Tags=_tag_list(function),  # an update ignores these
            **when,
        )["RuleArn"]
        with suppress(self._lambda.exceptions.ResourceConflictException):
            self._lambda.add_permission(
                FunctionName=arn,
                StatementId=name,
                Action="lambda:InvokeFunction",
                Principal="events.amazonaws.com",
                SourceArn=rule,
            )
        target = {"Id": "driver", "Arn": arn, "Input": json.dumps(event)}
        put = self._events.put_targets(Rule=name, Targets=[target])
        if put["FailedEntryCount"]:
            why = put["FailedEntries"][0]["ErrorMessage"]
            raise CloudspotError(f"EventBridge does not run the driver: {why}")

    def _try(self, name: str) -> None:
        """Run the function once, and raise CloudspotError with the end of its log if it fails."""

        def run() -> None:
            answer = self._lambda.invoke(FunctionName=name, LogType="Tail", Payload=b"{}")
            if answer.get("FunctionError"):
                raise CloudspotError(f"the driver {name} does not run: {_error_and_log(answer)}")

        self._once_effective(
            run, kind=CloudspotError, is_new=lambda error: LACKS_RIGHTS in str(error), wait_seconds=5.0
        )


def _tags(function: DriverFunction) -> dict[str, str]:
    return {machinetags.STORE: _NOT_IN_TAGS.sub("_", function.store_url)[:MAX_VALUE]}


def _tag_list(function: DriverFunction) -> list[dict[str, str]]:
    return to_list(_tags(function))


def _error_and_log(answer: Any) -> str:
    """Return a function's error and the end of its log, in one line."""
    with readable("trying the driver"):
        result = json.loads(answer["Payload"].read() or b"{}")
        log = b64decode(answer.get("LogResult", "")).decode("utf-8", "replace")
        parts = f"{result.get('errorMessage') or result} {log[-LOG_CHARACTERS:]}".split()
    return " ".join(parts)


def _minutes(function: DriverFunction) -> int:
    return whole_minutes(function, scheduler="EventBridge")


def _rate(minutes: int) -> str:
    return "rate(1 minute)" if minutes == 1 else f"rate({minutes} minutes)"


def _seconds(rate: str) -> float | None:
    parts = rate.removeprefix("rate(").removesuffix(")").split()
    minutes = whole_number(parts[0]) if len(parts) == 2 and parts[1].startswith("minute") else None
    return None if minutes is None else 60.0 * minutes


def _checked_bucket(function: DriverFunction) -> str:
    """Return the store's bucket; raise SpecError if the store is not in S3, or Lambda cannot run the code."""
    LIMITS.require_fit(function)
    return bucket_of(function, scheme="s3", needs="a driver on AWS Lambda needs a store in S3")
