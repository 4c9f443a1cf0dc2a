"""One emulated API behind the checks that all share: callers, API description, permissions, faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from cloudspot.emulation.api_faults import Call, Faults
from cloudspot_gcp_sandbox.apierror import ApiError
from cloudspot_gcp_sandbox.discovery import Matched, api
from cloudspot_gcp_sandbox.identities import Identities
from cloudspot_gcp_sandbox.wsgi import Reply, Request

Method = Callable[[Matched, dict[str, Any]], Mapping[str, Any]]
"""Takes a checked request, and its body; returns the response."""


class Grants(Protocol):
    """The permissions that accounts have because of grants made through the API."""

    def lacks(self, email: str, right: str, resource: str) -> bool:
        """Return whether the account has only granted permissions, and lacks this one."""

    def has(self, email: str, right: str, resource: str) -> bool:
        """Return whether the account was granted the permission on the resource, or on the whole project."""


class NoGrants:
    """No account needs a grant, and none has one."""

    def lacks(self, email: str, right: str, resource: str) -> bool:
        """Return False."""
        return False

    def has(self, email: str, right: str, resource: str) -> bool:
        """Return False."""
        return False


NO_GRANTS: Final = NoGrants()


class GuardedApi:
    """Answers requests to one API by its methods; records each with the permissions that it needed."""

    def __init__(
        self,
        document: str,
        methods: Mapping[str, Method],
        *,
        faults: Faults,
        identities: Identities,
        grants: Grants,
    ) -> None:
        """Check requests against a document such as ``iam.v1``; ``methods`` maps ids to methods."""
        self._document = document
        self._methods = methods
        self._faults = faults
        self._identities = identities
        self._grants = grants

    def answer(self, request: Request) -> Reply:
        """Answer a request."""
        action, caller, code = request.path, "", None
        parameters: dict[str, Any] = {}
        try:
            caller = self._identities.authenticate(request)
            body = request.read_json() or {}
            matched = api(self._document).check(request.method, request.path, request.query, body or None)
            action = matched.method_id
            parameters = {**matched.path, **matched.query, "body": body}
            injected = self._faults.take(action)
            if injected is not None and not injected.happens:
                raise ApiError(injected.status, injected.code, injected.message)
            self._authorize(action, parameters, caller)
            method = self._methods.get(action)
            if method is None:
                raise ApiError(501, "notImplemented", f"The emulated Google Cloud does not support {action}.")
            answer = method(matched, body)
            if injected is not None:
                raise ApiError(injected.status, injected.code, injected.message)
            api(self._document).check_answer(action, answer)
            reply = Reply.json(answer)
        except ApiError as error:
            code, reply = error.reason, Reply.refusal(error)
        service = self._document.partition(".")[0]
        self._faults.record(Call(service, action, parameters, "", code, access_key=caller))
        return reply

    def _authorize(self, action: str, parameters: Mapping[str, Any], caller: str) -> None:
        for right in sorted(rights_of(action, parameters)):
            where = _account_in(parameters) if right == "iam.serviceAccounts.actAs" else ""
            if right in self._faults.denied or self._grants.lacks(caller, right, where):
                raise ApiError(
                    403, "forbidden", f"Permission '{right}' denied on resource (or it may not exist)."
                )


_VERBS: Mapping[str, str] = {"patch": "update", "resume": "enable", "generateUploadUrl": "sourceCodeSet"}
"""The verb of a method's permission, if it is not the method's own."""
_SERVICES: Mapping[str, str] = {"cloudresourcemanager": "resourcemanager"}


def rights_of(action: str, parameters: Mapping[str, Any]) -> Iterable[str]:
    """Return the permissions that a method of these APIs needs.

    Source: IAM documentation, "Permissions reference"; Cloud Scheduler, OidcToken; Cloud Run functions,
    "Access control" (checked 2026-11).
    """
    service, *_, kind, verb = action.split(".")
    found = {f"{_SERVICES.get(service, service)}.{kind}.{_VERBS.get(verb, verb)}"}
    if _account_in(parameters):
        found.add("iam.serviceAccounts.actAs")
    return found


def _account_in(parameters: Mapping[str, Any]) -> str:
    """Return the service account that a request attaches to a resource, or "" if there is none."""
    body = parameters.get("body", {})
    target = body.get("httpTarget", {}).get("oidcToken", {})
    return str(body.get("serviceConfig", target).get("serviceAccountEmail", ""))
