"""Cloud Functions (2nd gen): functions are checked, built, and really run by requests and audit events.

A deployment is an operation that takes a while; meanwhile the function is DEPLOYING. The build has Google's
rules: the source needs a ``main.py``, all of it must compile, and only functions-framework can be required,
because there is no package index here.

Source: Cloud Functions API v2 (its discovery document); GoogleCloudPlatform/buildpacks, cmd/python; Eventarc,
"Cloud Audit Logs events" and "Roles and permissions"; Cloud Run, "Authenticating service-to-service"; checked
2026-11, the refusals' wording is from memory.
"""

from __future__ import annotations

import io
import json
import re
import secrets
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cloudspot.emulation.api_faults import Call, Faults
from cloudspot.emulation.function_process import FunctionProcesses
from cloudspot_gcp_sandbox.apierror import ApiError, invalid
from cloudspot_gcp_sandbox.catalogue import ZONES, number_of
from cloudspot_gcp_sandbox.discovery import Matched
from cloudspot_gcp_sandbox.functionruntime import FRAMEWORK, Answer, Code, FunctionInstance
from cloudspot_gcp_sandbox.guardedapi import GuardedApi
from cloudspot_gcp_sandbox.identities import Identities
from cloudspot_gcp_sandbox.machinetokens import TOKEN_SECONDS, MachineTokens
from cloudspot_gcp_sandbox.strict_iam import StrictIam
from cloudspot_gcp_sandbox.strict_logging import StrictLogging
from cloudspot_gcp_sandbox.wsgi import Reply, Request

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

BUILD_SECONDS: Final = 1.0
"""The minimum time of a build; Google's builds take minutes."""
AUDITED: Final = "google.cloud.audit.log.v1.written"
_PATH: Final = re.compile(r"/v2/projects/[^/]+/locations/[^/]+/(?:functions|operations)(?:[/:].*)?")
_UPLOADS: Final = re.compile(r"/(gcf-v2-uploads-[a-z0-9.-]+)/([0-9a-f-]+\.zip)")
_NAME: Final = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_LABEL: Final = re.compile(r"[a-z0-9_-]{0,63}")
_RESERVED: Final = re.compile(r"(?:K_|X_GOOGLE_).*|PORT|FUNCTION_TARGET|FUNCTION_SIGNATURE_TYPE")
_REQUIRED: Final = re.compile(rf"{FRAMEWORK}\s*[<>=~!].*|{FRAMEWORK}")
_FIELDS: Final = ("description", "labels", "buildConfig", "serviceConfig", "eventTrigger")


class StrictFunctions:
    """WSGI middleware; requests to other services reach ``app`` unchanged. Thread-safe."""

    def __init__(
        self,
        app: WSGIApplication,
        *,
        project: str,
        faults: Faults,
        identities: Identities,
        iam: StrictIam,
        logs: StrictLogging,
        tokens: MachineTokens,
        environment: Callable[[], Mapping[str, str]],
        directory: Path,
    ) -> None:
        """Run functions in ``directory``; ``environment`` directs their SDKs to the emulated services."""
        self._app = app
        self._project = project
        self._faults = faults
        self._iam = iam
        self._logs = logs
        self._tokens = tokens
        self._environment = environment
        self._directory = directory
        self._lock = threading.RLock()
        self._functions: dict[str, dict[str, Any]] = {}
        self._sources: dict[str, bytes | None] = {}
        """The uploads by bucket and object; None if nothing has been uploaded to the URL yet."""
        self._codes: dict[str, Code] = {}
        """The current code of each function, by its name."""
        self._operations: dict[str, dict[str, Any]] = {}
        self._processes = FunctionProcesses[FunctionInstance]()
        self._num_revisions = 0
        self._url = ""
        functions = "cloudfunctions.projects.locations.functions"
        self._api = GuardedApi(
            "cloudfunctions.v2",
            {
                f"{functions}.create": self._create,
                f"{functions}.delete": self._delete,
                f"{functions}.generateUploadUrl": self._give_url,
                f"{functions}.get": lambda matched, _: self._find(matched.path["name"]),
                f"{functions}.list": lambda _matched, _: {"functions": list(self._functions.values())},
                f"{functions}.patch": self._patch,
                "cloudfunctions.projects.locations.operations.get": self._operation,
            },
            faults=faults,
            identities=identities,
            grants=iam,
        )

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        request = Request.of(environ)
        upload = _UPLOADS.fullmatch(request.path)
        if upload is not None:
            return self._upload(request, f"{upload[1]}/{upload[2]}").send(start_response)
        if _PATH.fullmatch(request.path) is None:
            return self._app(environ, start_response)
        self._url = f"http://{request.header('host')}"
        return self._api.answer(request).send(start_response)

    def kill_running(self) -> None:
        """Kill the functions that are running."""
        self._processes.kill_running()

    def close(self) -> None:
        """End all processes."""
        self._processes.close()

    def left(self) -> list[str]:
        """Return the names of all functions."""
        with self._lock:
            return sorted(name.rpartition("/")[2] for name in self._functions)

    # --- running ------------------------------------------------------------------------------------

    def call(self, uri: str, headers: Mapping[str, str], body: bytes, *, email: str) -> Answer:
        """Send a request to the function at this address from within the project, as an account."""
        with self._lock:
            names = [name for name, one in self._functions.items() if _uri(one) == uri]
        if not names:
            return Answer(404, b"The requested URL was not found on this server.")
        name = names[0]
        service = self._service(name)
        if not self._iam.exists(email) or not self._iam.has(email, "run.routes.invoke", service):
            return Answer(403, b"The request was not authenticated, or the caller lacks run.routes.invoke.")
        return self._run(name, headers, body)

    def publish(self, resource: str, method: str, region: str) -> None:
        """Send a Compute Engine audit event about a machine to the functions that are triggered by it."""
        entry = {
            "logName": f"projects/{self._project}/logs/cloudaudit.googleapis.com%2Fsystem_event",
            "insertId": secrets.token_hex(8),
            "timestamp": _now(),
            "resource": {"type": "gce_instance", "labels": {"project_id": self._project}},
            "protoPayload": {
                "@type": "type.googleapis.com/google.cloud.audit.AuditLog",
                "serviceName": "compute.googleapis.com",
                "methodName": method,
                "resourceName": resource,
                "authenticationInfo": {"principalEmail": "system@google.com"},
            },
        }
        headers = {
            "Content-Type": "application/json",
            "ce-id": f"projects/{self._project}/logs/{entry['insertId']}",
            "ce-source": f"//cloudaudit.googleapis.com/projects/{self._project}/logs/system_event",
            "ce-specversion": "1.0",
            "ce-type": AUDITED,
            "ce-time": entry["timestamp"],
            "ce-servicename": "compute.googleapis.com",
            "ce-methodname": method,
            "ce-resourcename": resource,
        }
        seen = {"serviceName": "compute.googleapis.com", "methodName": method, "resourceName": resource}
        with self._lock:
            functions = [one for one in self._functions.values() if one["state"] == "ACTIVE"]
        for function in functions:
            trigger = function.get("eventTrigger", {})
            filters = {each["attribute"]: each["value"] for each in trigger.get("eventFilters", ())}
            is_heard = trigger.get("triggerRegion") in {"global", region}
            if is_heard and all(seen.get(key) == value for key, value in filters.items()):
                email = trigger["serviceAccountEmail"]
                arguments = (_uri(function), headers, json.dumps(entry).encode())
                threading.Thread(
                    target=self.call, args=arguments, kwargs={"email": email}, name="event", daemon=True
                ).start()

    def _run(self, name: str, headers: Mapping[str, str], body: bytes) -> Answer:
        with self._lock:
            function, code = self._functions.get(name), self._codes.get(name)
        if function is None or code is None:
            return Answer(404, b"There is no such service.")
        most = int(function["serviceConfig"].get("maxInstanceCount", 100))
        if self._processes.num_running(code.revision) >= most:
            return Answer(429, b"The request was aborted because there was no available instance.")

        def issue(email: str) -> str:
            return self._tokens.issue(email, scopes=(), expires_at=time.time() + TOKEN_SECONDS)

        def make() -> FunctionInstance:
            return FunctionInstance(code, self._directory, issue=issue)

        with self._processes.one(code.revision, make) as one:
            answer = one.request(headers, body)
            self._log(code, one.printed())
            return answer

    def _log(self, code: Code, printed: str) -> None:
        labels = {"project_id": self._project, "service_name": code.name, "revision_name": code.revision}
        for line in printed.splitlines():
            self._logs.deposit(
                {
                    "logName": f"projects/{self._project}/logs/run.googleapis.com%2Fstdout",
                    "resource": {"type": "cloud_run_revision", "labels": labels},
                    "textPayload": line,
                }
            )
        with (self._directory / "functions.log").open("a", encoding="utf-8") as log:
            log.write(printed)

    # --- source -------------------------------------------------------------------------------------

    def _give_url(self, matched: Matched, body: dict[str, Any]) -> Mapping[str, Any]:
        if body.get("environment", "GEN_2") != "GEN_2":
            raise invalid("The emulated Cloud Functions has functions of the second generation only.")
        region = matched.path["parent"].rpartition("/")[2]
        bucket = f"gcf-v2-uploads-{int(number_of(self._project)) % 10**12}-{region}"
        name = f"{secrets.token_hex(16)}.zip"
        with self._lock:
            self._sources[f"{bucket}/{name}"] = None
        query = f"X-Goog-Algorithm=GOOG4-RSA-SHA256&X-Goog-Signature={secrets.token_hex(32)}"
        return {
            "uploadUrl": f"{self._url}/{bucket}/{name}?{query}",
            "storageSource": {"bucket": bucket, "object": name},
        }

    def _upload(self, request: Request, key: str) -> Reply:
        code = None
        with self._lock:
            is_known = key in self._sources
        if request.method != "PUT" or not is_known or "X-Goog-Signature" not in request.query:
            code = "AccessDenied"
        elif request.header("authorization") is not None:
            code = "AccessDenied"  # The caller's own account has no access to Google's bucket.
        elif request.header("content-type") != "application/zip":
            code = "SignatureDoesNotMatch"
        else:
            content = request.read()
            with self._lock:
                self._sources[key] = content
        self._faults.record(Call("storage", "signed.put", {"object": key}, "", code))
        if code is not None:
            return Reply(
                403, {"Content-Type": "application/xml"}, f"<Error><Code>{code}</Code></Error>".encode()
            )
        return Reply(200)

    # --- functions ----------------------------------------------------------------------------------

    def _find(self, name: str) -> dict[str, Any]:
        with self._lock:
            if name not in self._functions:
                raise ApiError(404, "notFound", f"Resource '{name}' was not found")
            return dict(self._functions[name])

    def _create(self, matched: Matched, body: dict[str, Any]) -> Mapping[str, Any]:
        short, parent = str(matched.query.get("functionId", "")), matched.path["parent"]
        name = f"{parent}/functions/{short}"
        if parent.rpartition("/")[2] not in ZONES or not parent.startswith(f"projects/{self._project}/"):
            raise ApiError(404, "notFound", f"Location {parent} was not found.")
        if _NAME.fullmatch(short) is None or body.get("name", name) != name:
            raise invalid(f"Invalid function name {short!r}.", field="function_id")
        with self._lock:
            if name in self._functions:
                raise ApiError(
                    409, "alreadyExists", f"Could not create Cloud Run function {name}. It exists."
                )
            function = {"name": name, "environment": "GEN_2", "createTime": _now()}
            function |= {field: body[field] for field in _FIELDS if field in body}
            self._check(function)
            if "source" not in function["buildConfig"]:
                raise invalid("Source is required.", field="build_config.source")
            return self._deploy(function)

    def _patch(self, matched: Matched, body: dict[str, Any]) -> Mapping[str, Any]:
        with self._lock:
            function = self._find(matched.path["name"])
            if function["state"] in {"DEPLOYING", "DELETING"}:
                raise ApiError(409, "aborted", f"An operation on function {function['name']} is in progress.")
            mask = str(matched.query.get("updateMask") or ",".join(_FIELDS)).split(",")
            for field in mask:
                if field not in _FIELDS:
                    raise invalid(f"Invalid update mask: {field}", field="update_mask")
                if field in body:
                    function[field] = body[field]
            self._check(function)
            return self._deploy(function)

    def _delete(self, matched: Matched, _body: dict[str, Any]) -> Mapping[str, Any]:
        name = matched.path["name"]
        with self._lock:
            if self._find(name)["state"] in {"DEPLOYING", "DELETING"}:
                raise ApiError(409, "aborted", f"An operation on function {name} is in progress.")
            self._functions[name]["state"] = "DELETING"

        def work() -> dict[str, Any]:
            with self._lock:
                self._functions.pop(name)
                self._codes.pop(name, None)
                self._iam.remove_service(self._service(name))
            return {"@type": "type.googleapis.com/google.protobuf.Empty"}

        return self._begin(name, work)

    def _deploy(self, function: dict[str, Any]) -> Mapping[str, Any]:
        name = function["name"]
        # Google's response does not contain the origin of the source.
        source = function["buildConfig"].pop("source", None)
        self._functions[name] = function | {"state": "DEPLOYING", "updateTime": _now(), "stateMessages": []}
        held = self._codes.get(name)
        code = None if source is None else self._source(source)
        if code is None and held is not None:
            code = held.archive

        def work() -> dict[str, Any]:
            failed = self._build(code, function)
            with self._lock:
                made = self._functions[name]
                made["state"] = "FAILED" if failed else "ACTIVE"
                if not failed:
                    assert code is not None, "a function without code does not build"
                    self._release(made, code)
            if failed:
                raise failed
            return {"@type": "type.googleapis.com/google.cloud.functions.v2.Function", **made}

        return self._begin(name, work)

    def _release(self, function: dict[str, Any], archive: bytes) -> None:
        """Make the function run this code from now on."""
        name, short = function["name"], function["name"].rpartition("/")[2]
        self._num_revisions += 1
        config = function["serviceConfig"]
        revision = f"{short}-{self._num_revisions:05d}-{secrets.token_hex(2)}"
        function["serviceConfig"] = config | {
            "service": self._service(name),
            "revision": revision,
            "uri": f"https://{short}-{number_of(self._project)[:6]}-uc.a.run.app",
        }
        self._iam.add_service(self._service(name))
        self._codes[name] = Code(
            name=short,
            revision=revision,
            archive=archive,
            entry_point=function["buildConfig"]["entryPoint"],
            timeout_seconds=float(config.get("timeoutSeconds", 60)),
            email=config["serviceAccountEmail"],
            project=self._project,
            environment={**self._environment(), **config.get("environmentVariables", {})},
        )

    def _check(self, function: Mapping[str, Any]) -> None:
        """Refuse a function that Google refuses immediately."""
        build, config = function.get("buildConfig", {}), function.get("serviceConfig", {})
        trigger = function.get("eventTrigger")
        here = f"python{sys.version_info[0]}{sys.version_info[1]}"
        if build.get("runtime") != here:
            raise invalid(f"Runtime {build.get('runtime')!r} is not supported here; this is {here}.")
        if not build.get("entryPoint"):
            raise invalid("entry_point is required.")
        for key, value in function.get("labels", {}).items():
            if _LABEL.fullmatch(key) is None or _LABEL.fullmatch(value) is None:
                raise invalid(f"Invalid label {key}={value}")
        for key in config.get("environmentVariables", {}):
            if _RESERVED.fullmatch(key) is not None:
                raise invalid(f"The environment variable {key} is reserved.")
        if re.fullmatch(r"\d+(?:Mi|Gi|M|G)", config.get("availableMemory", "256M")) is None:
            raise invalid("Invalid available_memory.")
        if not 1 <= config.get("timeoutSeconds", 60) <= (540 if trigger else 3600):
            raise invalid("timeout_seconds must be 1 to 540 for functions that events run.")
        if trigger is None or trigger.get("eventType") != AUDITED:
            raise invalid("The emulated Cloud Functions has functions that audit events run, and no others.")
        known = {one["attribute"] for one in trigger.get("eventFilters", ())}
        if not {"serviceName", "methodName"} <= known <= {"serviceName", "methodName", "resourceName"}:
            raise invalid(f"The event type {AUDITED} needs the filters serviceName and methodName.")
        if trigger.get("triggerRegion", "global") not in {"global", *ZONES}:
            raise invalid(f"Invalid trigger region {trigger['triggerRegion']}.")
        for email in (config.get("serviceAccountEmail", ""), trigger.get("serviceAccountEmail", "")):
            if not self._iam.exists(email):
                raise ApiError(404, "notFound", f"Service account {email} does not exist.")

    def _source(self, source: Mapping[str, Any]) -> bytes:
        found = source.get("storageSource", {})
        content = self._sources.get(f"{found.get('bucket')}/{found.get('object')}")
        if content is None:
            raise ApiError(404, "notFound", "The function's source was not found in Cloud Storage.")
        return content

    def _build(self, archive: bytes | None, function: Mapping[str, Any]) -> ApiError | None:
        """Return the error if the function cannot be built or released, else None."""
        time.sleep(BUILD_SECONDS)
        failed = "Build failed with status: FAILURE. "
        if archive is None:
            return ApiError(400, "failedPrecondition", f"{failed}There is no source.")
        try:
            with zipfile.ZipFile(io.BytesIO(archive)) as packed:
                names = packed.namelist()
                required = packed.read("requirements.txt").decode() if "requirements.txt" in names else ""
                fault = _compiled(packed)
        except zipfile.BadZipFile:
            return ApiError(400, "failedPrecondition", f"{failed}The source is not a zip archive.")
        if "main.py" not in names:
            return ApiError(
                400, "failedPrecondition", f"{failed}missing main.py and GOOGLE_FUNCTION_SOURCE not set"
            )
        for line in required.splitlines():
            if line.strip() and _REQUIRED.fullmatch(line.strip()) is None:
                return ApiError(400, "failedPrecondition", f"{failed}no index has {line.strip()}")
        if fault:
            return ApiError(400, "failedPrecondition", f"{failed}{fault}")
        email = function["eventTrigger"]["serviceAccountEmail"]
        for right in ("eventarc.events.receiveAuditLogWritten", "eventarc.events.receiveEvent"):
            if self._iam.lacks(email, right, ""):
                return ApiError(403, "forbidden", f'Permission "{right}" denied on "{email}"')
        return None

    # --- operations ---------------------------------------------------------------------------------

    def _begin(self, name: str, work: Callable[[], dict[str, Any]]) -> Mapping[str, Any]:
        parent = name.rpartition("/functions/")[0]
        name = f"{parent}/operations/operation-{secrets.token_hex(8)}"
        self._operations[name] = operation = {"name": name, "done": False}

        def finish() -> None:
            end: dict[str, Any]
            try:
                end = {"response": work()}
            except ApiError as error:
                end = {"error": {"code": 7 if error.status == 403 else 3, "message": error.message}}
            with self._lock:
                operation.update(end, done=True)

        threading.Thread(target=finish, name="build", daemon=True).start()
        return dict(operation)

    def _operation(self, matched: Matched, _body: dict[str, Any]) -> Mapping[str, Any]:
        with self._lock:
            if matched.path["name"] not in self._operations:
                raise ApiError(404, "notFound", f"Operation {matched.path['name']} was not found.")
            return dict(self._operations[matched.path["name"]])

    def _service(self, name: str) -> str:
        return name.replace("/functions/", "/services/")


def _compiled(packed: zipfile.ZipFile) -> str:
    """Return why a part of the code does not compile, or an empty text if all of it does."""
    with tempfile.TemporaryDirectory() as directory:
        packed.extractall(directory)
        done = subprocess.run(
            [sys.executable, "-m", "compileall", "-f", "-q", "."],
            cwd=directory,
            capture_output=True,
            text=True,
            check=False,
        )
    return "" if done.returncode == 0 else done.stdout[-300:]


def _uri(function: Mapping[str, Any]) -> str:
    return str(function.get("serviceConfig", {}).get("uri", ""))


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
