"""ECS over HTTP, as strict as the real ECS, with signatures, client tokens, limited stock and lagging lists.

The module also answers the calls to VPC, RAM and STS that a plugin makes. Every call is recorded. Requests
that are not for the control plane go to the inner application.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from cloudspot.emulation.api_faults import Call, Faults
from cloudspot.emulation.cloud import MachineHost
from cloudspot.emulation.role_credentials import RoleKeys
from cloudspot_aliyun_sandbox import launching
from cloudspot_aliyun_sandbox.account import ACCOUNT_ID, NODE_ROLE, Account, has_tags, wanted_tags
from cloudspot_aliyun_sandbox.catalogue import Catalogue
from cloudspot_aliyun_sandbox.disks import Disks
from cloudspot_aliyun_sandbox.machines import Machine, Machines
from cloudspot_aliyun_sandbox.rights import resource_of, rights_of
from cloudspot_aliyun_sandbox.rpc import (
    VERSIONS,
    ApiError,
    Gate,
    answer_body,
    check_handled,
    check_names,
    error_body,
    json_list,
    nested,
    read_parameters,
)
from cloudspot_aliyun_sandbox.saved_images import SavedImages

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

Parameters = Mapping[str, str]
Handler = Callable[[Parameters, str], Mapping[str, Any]]
_HANDLED_FILTERS: Final = {
    "InstanceIds",
    "MaxResults",
    "NextToken",
    "PageNumber",
    "PageSize",
    "Status",
    "Tag",
    "ZoneId",
}


CONSOLE_BYTES: Final = 64 << 10
"""How much of a console's output is kept here; ECS's own limit is undocumented."""


class StrictEcs:
    """A WSGI application; ``inner`` answers all requests except those to the control plane."""

    def __init__(
        self,
        host: MachineHost,
        *,
        secrets: Mapping[str, str],
        roles: RoleKeys | None = None,
        inner: WSGIApplication | None = None,
        faults: Faults | None = None,
        is_granted: Callable[[str, str, str], bool] = lambda _key, _right, _resource: True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Boot machines on ``host``, and accept the keys in ``secrets``.

        ``roles`` knows the keys of machines' roles; ``is_granted`` returns whether a key has a permission on
        a resource; ``clock`` (seconds since the epoch) measures lags and release times.
        """
        self.faults = faults or Faults()
        self.account = Account(host.network)
        self.machines = Machines(host, self.faults, clock)
        self.catalogue = Catalogue(self.faults, clock)
        self.is_in_arrears = False
        """Whether the account is in arrears and cannot buy anything."""
        self.accounts: dict[str, str] = {}
        """The account of each key that belongs to another account; tests set it."""
        self._gate = Gate(secrets, roles)
        self._roles = roles
        self._is_granted = is_granted
        self._inner = inner
        self._clock = clock
        self._taken: dict[tuple[str, str], launching.Taken] = {}
        account, catalogue, disks = self.account, self.catalogue, Disks(self.machines, clock)
        self._images = images = SavedImages(account, self.machines, host, clock)
        self._handlers: dict[str, Handler] = {
            "CreateDefaultVSwitch": account.create_default_vswitch,
            "CreateDefaultVpc": account.create_default_vpc,
            "CreateDeploymentSet": account.create_deployment_set,
            "CreateDisk": disks.create,
            "CreateImage": images.create,
            "CreateSecurityGroup": account.create_security_group,
            "DeleteDeploymentSet": self._delete_deployment_set,
            "DeleteDisk": disks.delete,
            "DeleteImage": images.delete,
            "DeleteInstance": self._delete_instances,
            "DeleteInstances": self._delete_instances,
            "DeleteSecurityGroup": account.delete_security_group,
            "DeleteSnapshot": images.delete_snapshot,
            "DescribeAvailableResource": catalogue.describe_available_resource,
            "DescribeDeploymentSets": account.describe_deployment_sets,
            "DescribeDisks": disks.describe,
            "DescribeImageFromFamily": account.describe_image_from_family,
            "DescribeImages": account.describe_images,
            "DescribeInstanceTypes": catalogue.describe_instance_types,
            "DescribeInstances": self._describe_instances,
            "DescribeKeyPairs": account.describe_key_pairs,
            "DescribePrice": catalogue.describe_price,
            "DescribeRegions": account.describe_regions,
            "DescribeSecurityGroupAttribute": account.describe_security_group_attribute,
            "DescribeSecurityGroups": account.describe_security_groups,
            "DescribeSnapshots": images.describe_snapshots,
            "DescribeSpotAdvice": catalogue.describe_spot_advice,
            "DescribeSpotPriceHistory": catalogue.describe_spot_price_history,
            "DescribeVSwitches": account.describe_vswitches,
            "GetAuthorizationToken": account.get_authorization_token,
            "GetCallerIdentity": self._get_caller_identity,
            "GetInstanceConsoleOutput": self._get_console_output,
            "ListInstance": account.list_registries,
            "ModifyInstanceMetadataOptions": self._modify_metadata_options,
            "RunInstances": self._run_instances,
            "StopInstance": self._stop_instance,
            "TagResources": self._tag_resources,
            "UntagResources": self._untag_resources,
            **account.ram.handlers,
        }

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        if self._inner is not None and not _is_call(environ):
            return self._inner(environ, start_response)
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(length) if length else b""
        parameters: dict[str, str] = {}
        error: ApiError | None = None
        try:
            parameters = read_parameters(environ, body)
            answer = self._answer(environ, body, parameters)
            status, content = 200, answer_body(answer)
        except ApiError as refused:
            error, status, content = refused, refused.status, error_body(refused)
        product = VERSIONS.get(parameters.get("Version", ""), "")
        self.faults.record(
            Call(
                product.lower(),
                parameters.get("Action", ""),
                parameters,
                parameters.get("RegionId", ""),
                None if error is None else error.code,
                access_key=parameters.get("AccessKeyId", ""),
            )
        )
        start_response(
            f"{status} {'OK' if status < 400 else 'Error'}",
            [("Content-Type", "application/json;charset=utf-8"), ("Content-Length", str(len(content)))],
        )
        return [content]

    def tick(self) -> None:
        """Release the machines whose time is up; every API call does so too."""
        with self.machines.lock:
            self.machines.refresh()

    def _answer(self, environ: Mapping[str, Any], body: bytes, parameters: Parameters) -> Mapping[str, Any]:
        action, version = parameters.get("Action", ""), parameters.get("Version", "")
        product = VERSIONS.get(version)
        if product is None:
            raise ApiError("InvalidVersion", "Specified parameter Version is not valid.")
        if parameters.get("Format", "JSON").upper() != "JSON":
            raise ApiError("SandboxNotImplemented", "the emulated ECS answers only in JSON")
        # Callers sign with the real time, even if the machines use another clock.
        self._gate.check(environ, body, parameters, now=time.time())
        self._check_key(parameters["AccessKeyId"])
        if product == "Ecs" and self.faults.is_throttled():
            raise ApiError("Throttling.User", "Request was denied due to user flow control.")
        injected = self.faults.take(action)
        if injected is not None and not injected.happens:
            raise ApiError(injected.code, injected.message, status=injected.status)
        parameters = check_names(action, product, parameters)
        self._authorize(product, action, parameters)
        handler = self._handlers.get(action)
        if handler is None:
            raise ApiError("SandboxNotImplemented", f"the emulated ECS does not support {action}")
        with self.machines.lock:
            self.machines.refresh()
            self._images.refresh()
            region = parameters.get("RegionId", "")
            if product in {"Ecs", "Vpc"} and (region or action != "DescribeRegions"):
                self.account.place(region)
            answer = handler(parameters, region)
        if injected is not None:
            raise ApiError(injected.code, injected.message, status=injected.status)
        return answer

    def _check_key(self, key: str) -> None:
        if key in self.faults.rejected_keys:
            raise ApiError("InvalidAccessKeyId.Inactive", "Specified access key is disabled.")
        if key in self.faults.expired_keys:
            raise ApiError("InvalidSecurityToken.Expired", "Specified SecurityToken is expired.")

    def _authorize(self, product: str, action: str, parameters: Parameters) -> None:
        key = parameters["AccessKeyId"]
        call = Call(product.lower(), action, parameters, parameters.get("RegionId", ""), None, access_key=key)
        is_denied = f"{product.lower()}:{action}" in self.faults.denied and action != "GetCallerIdentity"
        lacking = [
            right
            for right in rights_of(call)
            if not self._is_granted(key, right, resource_of(call, right=right))
        ]
        if is_denied or lacking:
            code = "NoPermission" if product in {"Ram", "Sts"} else "Forbidden.RAM"
            message = (
                "User not authorized to operate on the specified resource, or this API doesn't support RAM."
            )
            raise ApiError(code, message, status=403)

    # --- machines -------------------------------------------------------------------------------

    def _run_instances(self, given: Parameters, region: str) -> Mapping[str, Any]:
        place = self.account.place(region)
        token = given.get("ClientToken", "")
        taken = self._taken.get((region, token)) if token else None
        request = launching.comparable(given)
        is_short = "token-forgotten" in self.faults.contrary
        limit = launching.FORGOTTEN_AFTER_SECONDS if is_short else launching.TOKEN_SECONDS
        if taken is not None and self._clock() - taken.at < limit:
            if taken.request != request:
                raise ApiError(
                    "IdempotentParameterMismatch",
                    "The request uses the same client token as a previous, but non-identical request.",
                )
            # The response is the same as before, even if the machines have ended.
            return {"InstanceIdSets": {"InstanceIdSet": list(taken.instance_ids)}}
        if self.is_in_arrears:
            raise ApiError("Account.Arrearage", "Your account has been in arrears.")
        kind = launching.check_request(given, self.account, place, now=self._clock())
        if "RamRoleName" in given and "ram:PassRole" in self.faults.denied:
            message = "The RAM user does not have the privilege to pass a RAM role."
            raise ApiError("InvalidUser.PassRoleForbidden", message, status=403)
        vswitch = place.vswitches[given["VSwitchId"]]
        parameters = {"ZoneId": vswitch.zone, **given}
        granted = launching.grant(parameters, kind, self.machines, self.catalogue, self.faults)
        if given.get("DryRun") == "true":
            message = "Request validation has been passed with DryRun flag set."
            raise ApiError("DryRunOperation", message)
        names = launching.numbered_names(parameters, int(parameters.get("Amount", 1)))[:granted]
        made = self.machines.make(
            parameters,
            region=region,
            network=vswitch.network,
            names=names,
            groups=nested(parameters, "SecurityGroupIds") or [parameters["SecurityGroupId"]],
            vpc=vswitch.vpc,
            found={tag["Key"]: tag.get("Value", "") for tag in nested(parameters, "Tag")},
            boot_disk=self._images.boot_disk(parameters),
        )
        if "AutoReleaseTime" in parameters:
            at = launching.release_time(parameters["AutoReleaseTime"], now=self._clock())
            for one in made:
                self.machines.by_id[one].auto_release_at = at
        if token:
            self._taken[region, token] = launching.Taken(request, tuple(made), self._clock())
        return {"InstanceIdSets": {"InstanceIdSet": made}}

    def _get_console_output(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        wanted = parameters.get("InstanceId", "")
        machine = next((one for one in self.machines.known(region) if one.id == wanted), None)
        if machine is None:
            raise ApiError(
                "InvalidInstanceId.NotFound", "The specified InstanceId does not exist.", status=404
            )
        text = self.machines.console(machine)
        return {
            "InstanceId": machine.id,
            "ConsoleOutput": base64.b64encode(text.encode()[-CONSOLE_BYTES:]).decode(),
            "LastUpdateTime": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self._clock() + 8 * 3600)),
        }

    def _describe_instances(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        check_handled(parameters, _HANDLED_FILTERS, what="filter")
        named, tags = json_list(parameters, "InstanceIds"), wanted_tags(parameters)
        rows = [
            one.describe()
            for one in self.machines.known(region)
            if (named is None or one.id in named)
            and parameters.get("ZoneId", one.zone) == one.zone
            and parameters.get("Status", one.status) == one.status
            and has_tags(one.tags, tags)
        ]
        answer: dict[str, Any] = {"TotalCount": len(rows)}
        if "MaxResults" in parameters or "NextToken" in parameters:
            size = int(parameters.get("MaxResults", 10))
            if not 1 <= size <= 100:
                raise ApiError("InvalidParameter", "The specified MaxResults is not valid.")
            start = int(parameters.get("NextToken") or 0)
            if start + size < len(rows):
                answer["NextToken"] = str(start + size)
            rows = rows[start : start + size]
        else:
            size = int(parameters.get("PageSize", 10))
            if not 1 <= size <= 100:
                raise ApiError("InvalidParameter", "The specified PageSize is not valid.")
            start = (int(parameters.get("PageNumber", 1)) - 1) * size
            rows = rows[start : start + size]
        return {**answer, "Instances": {"Instance": rows}}

    def _delete_instances(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        ids = nested(parameters, "InstanceId") or [parameters.get("InstanceId", "")]
        if not 1 <= len(ids) <= 100:
            raise ApiError("InvalidParameter", "The specified InstanceId is not valid.")
        by_machine = self.faults.is_machine(parameters.get("AccessKeyId", ""))
        if by_machine and "self-release-refused" in self.faults.contrary:
            raise ApiError(
                "Forbidden.RAM", "User not authorized to operate on the specified resource.", status=403
            )
        machines = [self._machine(one, region) for one in ids]
        for machine in machines:
            if machine.status != "Stopped" and parameters.get("Force") != "true":
                message = "The current status of the resource does not support this operation."
                raise ApiError("IncorrectInstanceStatus", message, status=403)
        for machine in machines:
            self.machines.release(machine)
        self.machines.refresh()
        return {}

    def _stop_instance(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        machine = self._machine(parameters.get("InstanceId", ""), region)
        if machine.status != "Running":
            message = "The current status of the resource does not support this operation."
            raise ApiError("IncorrectInstanceStatus", message, status=403)
        self.machines.stop(machine)
        return {}

    def _tag_resources(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        ids, given = nested(parameters, "ResourceId"), nested(parameters, "Tag")
        if parameters.get("ResourceType") != "instance":
            raise ApiError("SandboxNotImplemented", "the emulated ECS tags only instances")
        if not 1 <= len(ids) <= 50:
            raise ApiError("InvalidParameter", "The specified ResourceId is not valid.")
        launching.check_tags(given)
        for instance_id in ids:
            if not self.machines.is_known(instance_id, region):
                message = "The specified ResourceIds are not found in our records."
                raise ApiError("InvalidResourceId.NotFound", message, status=404)
            if (
                len({*self.machines.by_id[instance_id].tags, *(tag["Key"] for tag in given)})
                > launching.MAX_TAGS
            ):
                message = "The tags of the resource exceed the quota."
                raise ApiError("NumberExceed.Tags", message)
        self.machines.tag(ids, {tag["Key"]: tag.get("Value", "") for tag in given})
        return {}

    def _untag_resources(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        for one in nested(parameters, "ResourceId"):
            machine = self._machine(one, region)
            for name in nested(parameters, "TagKey"):
                machine.tags.pop(name, None)
            self.machines.show_tags(machine)
        return {}

    def _modify_metadata_options(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        machine = self._machine(parameters.get("InstanceId", ""), region)
        launching.check_metadata(parameters)
        # An option that the request does not name returns to its default.
        defaults = {"HttpEndpoint": "enabled", "HttpTokens": "optional"}
        machine.metadata |= {name: parameters.get(name, value) for name, value in defaults.items()}
        if "InstanceMetadataTags" in parameters:
            machine.metadata["InstanceMetadataTags"] = parameters["InstanceMetadataTags"]
        self.machines.show_tags(machine)
        return {}

    def _delete_deployment_set(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        place, wanted = self.account.place(region), parameters.get("DeploymentSetId", "")
        if not wanted:
            raise ApiError("MissingParameter", 'The input parameter "DeploymentSetId" is mandatory.')
        if wanted not in place.deployment_sets:  # from memory: the reference gives no code for this
            raise ApiError("InvalidDeploymentSetId.NotFound", "The specified DeploymentSetId does not exist.")
        if any(one.deployment_set == wanted for one in self.machines.alive()):
            message = "There are still instance(s) in the specified DeploymentSetId."
            raise ApiError("DependencyViolation.NotEmpty", message, status=403)
        del place.deployment_sets[wanted]
        return {}

    def _get_caller_identity(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        key = parameters["AccessKeyId"]
        is_role = self._roles is not None and self._roles.is_role_key(key)
        user = self.account.ram.keys.get(key, ("sandbox", ""))[0]
        identity = f"assumed-role/{NODE_ROLE}/node" if is_role else f"user/{user}"
        account = self.accounts.get(key, ACCOUNT_ID)
        return {"AccountId": account, "Arn": f"acs:ram::{account}:{identity}", "UserId": "2012345678"}

    def _machine(self, instance_id: str, region: str) -> Machine:
        if not self.machines.is_known(instance_id, region):
            message = "The specified InstanceId does not exist."
            raise ApiError("InvalidInstanceId.NotFound", message, status=404)
        return self.machines.by_id[instance_id]


def _is_call(environ: Mapping[str, Any]) -> bool:
    """Return whether a request is for the control plane, as it has no path and names an action."""
    return environ.get("PATH_INFO", "/") in {"", "/"} and "HTTP_X_ACS_ACTION" in environ
