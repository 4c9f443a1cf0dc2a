"""``cloudspot providers check aws``: tries each step that a job needs, and reports how to fix a failure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from functools import partial
from typing import Any, Final

import botocore.exceptions
import msgspec

from cloudspot.calls import InstancesRequest
from cloudspot.decoding import MAX_TALLY
from cloudspot.errors import AuthError, CloudspotError, SpecError
from cloudspot.model import CheckResult, InstanceState, Market, Offer, Resources
from cloudspot.plugin.answers import number
from cloudspot.plugin.checklist import Checklist, NotKnown, cheapest_by_market, compare_clock, trial_launch
from cloudspot.plugin.launchrequests import decode_request
from cloudspot_aws.clients import AwsClients, caller
from cloudspot_aws.cloudwatch import GROUP_PREFIX
from cloudspot_aws.ec2 import Ec2Provisioner
from cloudspot_aws.errors import ERRORS
from cloudspot_aws.lookups import check_profile, check_region, find_image, named_types
from cloudspot_aws.options import AwsOptions
from cloudspot_aws.refusals import denied_action
from cloudspot_aws.request import Ec2Request

_SETUP: Final = "an administrator runs: cloudspot setup aws"
_QUOTAS: Final = (
    (("g", "vt", "gr"), "L-DB2E81BA", "L-3819A6DF"),
    (("p5", "p6"), "L-417A185B", "L-C4BD4855"),
    (("p",), "L-417A185B", "L-7212CCBC"),
    (("trn",), "L-2C3B7624", "L-6B0D517C"),
    (("inf",), "L-1945791B", "L-B5D1601B"),
    (("dl",), "L-6E869C2A", "L-85EED4F7"),
    (("a", "c", "d", "h", "i", "m", "r", "t", "z"), "L-1216C47A", "L-34B43A08"),
)
"""The codes of the vCPU quotas on demand and on the spot market, by the prefix of a type's name (EC2 user
guide, "Amazon EC2 service quotas"). The codes of p5, p6, trn, inf and dl are from memory; a wrong code makes
this check fail for such a type, but no launch."""

ACCELERATOR_QUOTAS: Final = {
    "vCPUs of G and VT machines on the spot market": "L-3819A6DF",
    "vCPUs of G and VT machines on demand": "L-DB2E81BA",
    "vCPUs of P machines on the spot market": "L-7212CCBC",
    "vCPUs of P machines on demand": "L-417A185B",
}


def check(options: AwsOptions, clients: AwsClients, resources: Resources) -> Sequence[CheckResult]:
    """Try in order each step that a submission needs; skip those that depend on a failed one."""
    lines = Checklist(remedy=_SETUP)
    attempt = lines.attempt

    if not attempt("region", lambda: check_region(clients)):
        return lines.results()
    if not attempt("credentials", lambda: caller(clients).arn):
        return lines.results()
    lines.remedy = f"{_SETUP} --grant-to {principal_of(caller(clients).arn)}"
    attempt("clock", lambda: _clock(clients), "set this machine's clock, by NTP")
    provisioner = Ec2Provisioner(options, clients)
    lines.attempt_listing(provisioner)
    attempt("image", lambda: _image(clients, options))
    attempt("instance profile", lambda: _profile(clients, options), _SETUP)
    offers = lines.attempt_offers(provisioner, resources)
    if not offers:
        return lines.results()
    for market, offer in cheapest_by_market(offers):
        attempt(f"launch, {market.value}", partial(_launch, provisioner, clients, offer))
        attempt(f"quota, {market.value}", partial(_quota, clients, options, offer))
    on_a_machine = partial(_on_a_machine, provisioner, clients)
    attempt("tagging", partial(on_a_machine, "create_tags", "ec2:CreateTags"))
    attempt("ending", partial(on_a_machine, "terminate_instances", "ec2:TerminateInstances"))
    attempt("console", partial(on_a_machine, "get_console_output", "ec2:GetConsoleOutput"))
    if options.placement_group == "auto":
        attempt("placement group", lambda: _placement_group(clients))
    if options.limit_role is not None:
        attempt("limit", lambda: _schedules(clients))
    if options.logs == "cloudwatch" and options.log_group is not None:
        group = options.log_group
        statement = (
            f'add "arn:*:logs:*:*:log-group:{group}*" to the statement "Logs" of the policy '
            "cloudspot-submitter and of the role cloudspot-node"
        )
        attempt("logs", lambda: _logs(clients, group), statement)
    return lines.results()


def _clock(clients: AwsClients) -> str:
    with ERRORS.translated("asking AWS for the time"):
        answer = clients.client("sts").get_caller_identity()
    date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    return compare_clock(date, server="AWS")


def principal_of(arn: str) -> str:
    """Return the caller in the form of ``cloudspot setup --grant-to``: the role itself, not its session."""
    if ":assumed-role/" in arn:
        return f"role/{arn.split('/')[1]}"
    return arn.rpartition(":")[2]


def _profile(clients: AwsClients, options: AwsOptions) -> str:
    is_seen = check_profile(clients, options)
    doubt = "" if is_seen else " (not checked: the permission iam:GetInstanceProfile is missing)"
    return options.instance_profile + doubt


def _image(clients: AwsClients, options: AwsOptions) -> str:
    """Return the image from which machines start, its age, and whether AWS has deprecated it."""
    image, now = find_image(clients, options), datetime.now(timezone.utc)
    age = "" if image.created_at is None else f", {(now - image.created_at).days} days old"
    old = image.deprecated_at
    doubt = "" if old is None or old > now else f"; deprecated since {old:%Y-%m-%d}: name another image"
    return f"{image.id}{age}{doubt}"


def _launch(provisioner: Ec2Provisioner, clients: AwsClients, offer: Offer) -> str:
    """Send a job's request as a dry run, which EC2 should refuse only because it is a dry run."""
    body = decode_request(provisioner.render(trial_launch(offer)), Ec2Request)
    _dry_run(clients, "run_instances", "ec2:RunInstances", **body.run_instances)
    return f"{offer.instance_type} in {offer.zone} may be launched"


def _on_a_machine(provisioner: Ec2Provisioner, clients: AwsClients, call: str, right: str) -> str:
    """Try a permission on one of cloudspot's machines, because a policy may cover only those."""
    listed = provisioner.instances(InstancesRequest()).instances
    machines = [one for one in listed if one.state is not InstanceState.ENDED]
    if not machines:
        raise NotKnown(f"not checked: cloudspot has no machine now on which to try {right}")
    machine = machines[0].id
    arguments: dict[str, dict[str, Any]] = {
        "create_tags": {"Resources": [machine], "Tags": [{"Key": "Name", "Value": "check"}]},
        "get_console_output": {"InstanceId": machine},
        "terminate_instances": {"InstanceIds": [machine]},
    }
    _dry_run(clients, call, right, **arguments[call])
    return f"{right} is granted"


def _placement_group(clients: AwsClients) -> str:
    _dry_run(
        clients,
        "create_placement_group",
        "ec2:CreatePlacementGroup",
        GroupName="cloudspot-check",
        Strategy="cluster",
    )
    return "may be made"


def _schedules(clients: AwsClients) -> str:
    with ERRORS.translated("listing schedules (providers.aws.limit_role)"):
        clients.client("scheduler").list_schedules(NamePrefix="cloudspot-", MaxResults=1)
    return "schedules may be listed"


def _logs(clients: AwsClients, group: str) -> str:
    """Read the group as the submitter does; only a machine could check that its own role may write there."""
    doubt = (
        ""
        if group.startswith(GROUP_PREFIX)
        else f" (not checked: the machines' role; cloudspot-node covers only {GROUP_PREFIX}*)"
    )
    try:
        with ERRORS.translated("reading providers.aws.log_group", {"ResourceNotFoundException": SpecError}):
            clients.client("logs").describe_log_streams(logGroupName=group, limit=1)
    except SpecError:
        return f"{group} does not exist yet, and the first node makes it{doubt}"
    return f"{group} may be read{doubt}"


def quota_notes(clients: AwsClients) -> list[str]:
    """Return a line of advice for each accelerator quota that is 0, as in new accounts.

    Raises:
        AuthError: the permission ``servicequotas:GetServiceQuota`` is missing.
    """
    notes = []
    client, region = clients.client("service-quotas"), clients.region
    for what, code in ACCELERATOR_QUOTAS.items():
        with ERRORS.translated("reading a quota"):
            quota = client.get_service_quota(ServiceCode="ec2", QuotaCode=code)["Quota"]
        if not number(quota["Value"], most=MAX_TALLY):
            notes.append(f"the quota {code} ({what}) is 0 in {region}; {_ask_for(code, region, 8)}")
    return notes


def _ask_for(code: str, region: str, num_vcpus: int) -> str:
    page = f"https://{region}.console.aws.amazon.com/servicequotas/home/services/ec2/quotas/{code}"
    return (
        f'ask for more at {page} with the words "We train models with PyTorch on {num_vcpus} vCPUs at a '
        f'time, on spot machines that save their work.", or run: aws service-quotas '
        f"request-service-quota-increase --region {region} --service-code ec2 --quota-code {code} "
        f"--desired-value {num_vcpus}"
    )


def _dry_run(clients: AwsClients, call: str, right: str, **arguments: Any) -> None:
    client = clients.client("ec2")
    try:
        getattr(client, call)(**arguments, DryRun=True)
    except botocore.exceptions.ClientError as error:
        code = ERRORS.code_of(error)
        if code == "DryRunOperation":
            return
        if code == "UnauthorizedOperation":
            missing = denied_action(clients, error) or right
            raise AuthError(f"access denied: the credentials lack {missing}") from error
        raise ERRORS.translation(error, f"trying {right}") from error
    except ERRORS.raised as error:
        raise ERRORS.translation(error, f"trying {right}") from error
    raise CloudspotError(f"{right}: EC2 accepted a dry run without the code DryRunOperation")


def _quota(clients: AwsClients, options: AwsOptions, offer: Offer) -> str:
    name = offer.instance_type
    found = next((codes for starts, *codes in _QUOTAS if name.startswith(starts)), None)
    if found is None:
        raise NotKnown(f"no quota is known for {name}")
    code = found[1] if offer.market is Market.SPOT else found[0]
    (type_,) = named_types(clients, msgspec.structs.replace(options, instance_types=(name,)))
    try:
        with ERRORS.translated("reading the quota"):
            client = clients.client("service-quotas")
            answer = client.get_service_quota(ServiceCode="ec2", QuotaCode=code)
    except AuthError as error:
        raise NotKnown("the permission servicequotas:GetServiceQuota is missing") from error
    num_vcpus = int(number(answer["Quota"]["Value"], most=MAX_TALLY) or 0)
    if num_vcpus < type_.cpus:
        raise CloudspotError(
            f"{num_vcpus} vCPUs, but one {name} needs {type_.cpus}; "
            f"{_ask_for(code, clients.region, 2 * type_.cpus)}"
        )
    return f"{num_vcpus} vCPUs, enough for {num_vcpus // type_.cpus} {name}"
