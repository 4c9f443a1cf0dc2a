"""What a process connects to, by whatever means: in one of its own, as the guard cannot be taken off."""

import subprocess
import sys
import textwrap

import pytest

SETTING = """
    import contextvars, http.server, socket, tempfile, threading, urllib.error, urllib.request
    from cloudspot.host import guarded_connections
    from cloudspot.host.guarded_connections import Permit, permit

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path == "/away":
                self.send_response(302)
                self.send_header("Location", f"http://127.0.0.1:{private.server_port}/")
            else:
                self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    def serve(address):
        server = http.server.ThreadingHTTPServer((address, 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def ask(host, server, path="/"):
        try:
            return urllib.request.urlopen(f"http://{host}:{server.server_port}{path}").status
        except OSError as error:
            return type(getattr(error, "reason", error)).__name__

    def attempt(act):
        try:
            act()
        except OSError as error:
            return type(error).__name__

    private, public = serve("127.0.0.1"), serve("127.0.0.2")
    # This one address stands for the internet.
    guarded_connections.is_public = lambda address: address == "127.0.0.2"
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)

    def run(script, before="", *, threads_inherit=False):
        guard = f"guarded_connections.guard_connections({threads_inherit=})\n"
        program = tmp_path / "program.py"
        program.write_text(
            "".join([*map(textwrap.dedent, (SETTING, before)), guard, textwrap.dedent(script)])
        )
        done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
        assert done.stderr == ""
        return done.stdout.split()

    return run


@pytest.mark.full
def test_each_connection_is_judged_by_its_address_whatever_makes_it(run):
    said = run("""
        print(ask("127.0.0.2", public), ask("127.0.0.1", private), ask("localhost", private))
        print(ask("127.0.0.2", public, "/away"))
        udp, unix = socket.socket(type=socket.SOCK_DGRAM), socket.socket(socket.AF_UNIX)
        print(attempt(lambda: udp.sendto(b"x", ("127.0.0.1", 9))))
        print(attempt(lambda: udp.sendmsg([b"x"], [], 0, ("127.0.0.1", 9))))
        print(attempt(lambda: udp.connect(("localhost", 9))), attempt(lambda: udp.connect_ex(("127.0.0.1", 9))))
        print(attempt(lambda: unix.connect("/run/docker.sock")))
    """)
    assert said == ["200", *["AddressRefused"] * 8]


def test_what_may_be_private_does_not_come_back_from_the_internet(run):
    said = run("""
        def task(*asked):
            granted = Permit(may_be_private=True)
            permit.set(granted)
            found = []
            # As libraries do it that send from threads of their own.
            context = contextvars.copy_context()
            thread = threading.Thread(target=context.run, args=[lambda: found.extend(ask(*one) for one in asked)])
            thread.start()
            thread.join()
            print(*found, granted.has_refused)

        task(("127.0.0.1", private), ("127.0.0.1", private))
        task(("127.0.0.2", public), ("127.0.0.1", private))
        task(("127.0.0.2", public, "/away"))
        task(("127.0.0.2", public))
    """)
    assert said == [
        "200",
        "200",
        "False",
        "200",
        "AddressRefused",
        "True",
        "AddressRefused",
        "True",
        "200",
        "False",
    ]


@pytest.mark.full
def test_a_thread_outside_of_its_tasks_context_may_connect_as_the_task_where_all_tasks_may(run):
    """As libraries do it that keep a connection in a thread of their own."""
    script = """
        def task(may_be_private, *asked):
            granted = Permit(may_be_private=may_be_private)
            found = []

            def work():
                found.extend(ask(*one) for one in asked)

            def begin():
                permit.set(granted)
                # The thread of a thread, neither of which has the context.
                outer = threading.Thread(target=lambda: start(work))
                outer.start()
                outer.join()

            def start(work):
                inner = threading.Thread(target=work)
                inner.start()
                inner.join()

            contextvars.copy_context().run(begin)
            print(*found, granted.has_refused)

        task(True, ("127.0.0.1", private))
        task(True, ("127.0.0.2", public), ("127.0.0.1", private))
        task(False, ("127.0.0.1", private))
    """
    said = ["200", "False", "200", "AddressRefused", "True", "AddressRefused", "True"]
    assert run(script, threads_inherit=True) == said
    refused = ["AddressRefused", "False", "200", "AddressRefused", "False", "AddressRefused", "False"]
    assert run(script) == refused, "it may be a thread that works for several tasks"


def test_a_proxy_that_has_moved_is_looked_up_again(run):
    said = run(
        """
        where["proxy.example"] = "127.0.0.1"
        print(ask("127.0.0.1", private), ask("127.0.0.3", private))
        """,
        """
        import os
        where, getaddrinfo = {"proxy.example": "127.0.0.9"}, socket.getaddrinfo
        socket.getaddrinfo = lambda host, *more, **named: getaddrinfo(where.get(host, host), *more, **named)
        os.environ["https_proxy"] = f"http://proxy.example:{private.server_port}"
        """,
    )
    assert said == ["200", "AddressRefused"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("host", "says"), [("127.0.0.1.", "AddressRefused"), ("slow.example", "200"), ("unknown.example", "200")]
)
def test_a_proxy_is_asked_for_no_private_address_however_it_is_written_and_waits_for_no_name_server(
    run, host, says
):
    """A name that nobody here can look up is left to the proxy, also if its name server does not answer."""
    said = run(
        f"""
        address = f"http://{host}:{{private.server_port}}/"
        try:
            print(urllib.request.urlopen(address).status)
        except OSError as error:
            print(type(getattr(error, "reason", error)).__name__)
        """,
        """
        import os
        getaddrinfo, guarded_connections.LOOKUP_SECONDS = socket.getaddrinfo, 0.05

        def look_up(host, *more, **named):
            if host == "slow.example":
                threading.Event().wait()
            if host == "unknown.example":
                raise socket.gaierror(socket.EAI_NONAME, "not known")
            return getaddrinfo(host, *more, **named)

        socket.getaddrinfo = look_up
        os.environ["http_proxy"] = f"http://127.0.0.1:{private.server_port}"
        """,
    )
    assert said == [says]
