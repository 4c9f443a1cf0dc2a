"""A metadata service of one emulated machine on a port of this one, for programs that ask it."""

from __future__ import annotations

import pytest
from werkzeug.wrappers import Request, Response

from cloudspot.emulation.cloud import MachineView
from cloudspot.emulation.cloud import Request as MachineRequest
from cloudspot.emulation.wsgi_server import Server
from cloudspot_aliyun_sandbox.metadata_server import EcsMetadataService


@pytest.fixture
def serve_metadata():
    """``serve_metadata(facts)``: serve a machine of these facts, and return the address."""
    servers = []

    def serve(facts):
        service = EcsMetadataService(MachineView(address=facts["private-ipv4"], facts=facts))

        @Request.application
        def app(request):
            headers = {name.lower(): value for name, value in request.headers.items()}
            answer = service.answer(MachineRequest(request.method, request.path, headers))
            return Response(answer.body, status=answer.status)

        servers.append(Server(app))
        return servers[-1].url

    yield serve
    for server in servers:
        server.close()
