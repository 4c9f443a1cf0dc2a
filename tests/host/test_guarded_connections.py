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
    guarded_connections.guard_connections()
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)

    def run(script):
        program = tmp_path / "program.py"
        program.write_text(textwrap.dedent(SETTING) + textwrap.dedent(script))
        done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
        assert done.stderr == ""
        return done.stdout.split()

    return run


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
