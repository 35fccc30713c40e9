"""The service as a separate process, with clients that are slow, silent, numerous or gone."""

import http.client
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_predictor import Model, ask
from places import ROOT, SUPPORT

for library in ("httpx", "fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(library)

SERVICE = Path(__file__).with_name("slow_service.py")
BODY = json.dumps({"pairs": [["abc", "b"]]}).encode()
HEAD = b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(BODY)


class Running:
    """``said``: what it wrote to stderr, starting with the line that holds its address."""

    def __init__(self, process, port, said):
        self.process, self.port, self.said = process, port, said

    def connect(self, timeout=60):
        return socket.create_connection(("127.0.0.1", self.port), timeout)

    def ask(self, count):
        """Open connections, each with a whole request."""
        connections = [self.connect() for _ in range(count)]
        for connection in connections:
            connection.sendall(HEAD + BODY)
        return connections

    def get(self, path, timeout=60):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        connection.request("GET", path)
        content = connection.getresponse().read().decode()
        connection.close()
        return content

    def number(self, name):
        return float(re.search(rf"^{re.escape(name)} (.+)$", self.get("/metrics"), re.MULTILINE)[1])

    def wait_for(self, name, least):
        wait_until(lambda: self.number(name) >= least)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)

    def end(self):
        """Everything it wrote to stderr, after checking that it exited cleanly."""
        self.stop()
        assert self.process.wait(60) == 0
        self.reader.join(10)
        assert self.said[-1].endswith("stopped\n")
        assert "Traceback" not in (log := "".join(self.said))
        return log


def wait_until(is_true):
    until = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < until
        time.sleep(0.01)


@contextmanager
def serving(*flags, seconds=0.0, limits=None, files=None, **asked):
    """``files``: the limit of open files."""

    def limit():
        if files:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    asked.update(seconds=seconds, limits=limits or {})
    words = [sys.executable, str(SERVICE), json.dumps(asked), *flags]
    folders = os.pathsep.join(map(str, (ROOT, SUPPORT)))
    with subprocess.Popen(
        words, stderr=subprocess.PIPE, text=True, preexec_fn=limit, env={**os.environ, "PYTHONPATH": folders}
    ) as process:
        try:
            said = [next(line for line in process.stderr if "http://" in line)]
            running = Running(process, int(re.search(r"http://127\.0\.0\.1:(\d+)", said[0])[1]), said)
            running.reader = threading.Thread(target=lambda: said.extend(process.stderr), daemon=True)
            running.reader.start()
            yield running
        finally:
            process.kill()


def answer_of(connection):
    response = http.client.HTTPResponse(connection)
    try:
        response.begin()
        return response.status, response.read()
    except (ConnectionError, http.client.HTTPException):
        return 0, b""


def is_closed(connection, within):
    """Whether the other side closes it in time; data received before that is ignored."""
    connection.settimeout(within)
    try:
        while connection.recv(1000):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def trickle(connection, content):
    """Send one byte at a time, until the other side stops accepting them."""
    try:
        for byte in content:
            connection.send(bytes([byte]))
            time.sleep(0.1)
    except OSError:
        pass


SILENT = {
    "nothing": b"",
    "half a head": HEAD[:30],
    "a head without its body": HEAD,
    "half a body": HEAD + BODY[:5],
    "a body that no route reads": b"GET /health HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n",
    "an answered request, and half of another": HEAD + BODY + HEAD[:10],
}


SHORT = {"connections.HEAD_SECONDS": 1.0, "request.BODY_SECONDS": 1.0}
ONE_BY_ONE = ("--max_batch", "1")


def test_clients_with_incomplete_requests_are_disconnected():
    """All of them at once, plus one client that keeps sending a header forever."""
    with serving(limits=SHORT) as service:
        connections = {name: service.connect() for name in SILENT}
        for name, content in SILENT.items():
            connections[name].sendall(content)
        slow = service.connect()
        endless = b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 600
        threading.Thread(target=trickle, args=(slow, endless), daemon=True).start()
        begun = time.monotonic()
        still_open = [name for name, connection in connections.items() if not is_closed(connection, 10)]
        assert still_open == [] and is_closed(slow, 10)
        assert time.monotonic() - begun < 8
        assert '"status":"ok"' in service.get("/health")
        service.end()


def test_a_client_waiting_in_the_queue_is_not_disconnected():
    with serving(seconds=2.5, limits=SHORT) as service:
        assert answer_of(service.ask(1)[0])[0] == 200


def test_a_client_that_does_not_read_is_disconnected():
    limits = {"connections.READ_SECONDS": 1.0}
    with serving(limits=limits) as service:
        connection = service.connect()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        page = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n" * 3000  # megabytes of answers
        connection.settimeout(20)
        with pytest.raises(ConnectionError):
            for _ in range(200):
                connection.sendall(page)
                time.sleep(0.1)


def test_connections_stay_below_the_limit_of_open_files():
    with serving(files=256) as service:
        crowd, turned_away = [service.connect() for _ in range(400)], set()

        def are_turned_away():
            turned_away.update(one for one in crowd if b"too many connections" in answer_of_now(one))
            return len(turned_away) >= 20

        wait_until(are_turned_away)
        for connection in crowd:
            connection.close()
        wait_until(lambda: '"status":"ok"' in service.get("/health"))
        log = service.end()
        assert "out of system resource" not in log and len(log.splitlines()) < 10


def answer_of_now(connection):
    connection.settimeout(0.01)
    try:
        return connection.recv(1000)
    except OSError:
        return b""


def test_nothing_is_computed_for_disconnected_clients():
    with serving(*ONE_BY_ONE, seconds=0.5) as service:
        *gone, stays = service.ask(12)
        service.wait_for("ernie_pair_waiting_pairs", 9)
        for connection in gone:
            connection.close()
        assert answer_of(stays)[0] == 200
        assert service.number("ernie_pair_batch_pairs_sum") <= 6
        assert service.number("ernie_pair_waiting_pairs") == 0
        service.end()


def test_sigterm_answers_the_whole_queue():
    with serving(*ONE_BY_ONE, seconds=0.1) as service:
        connections = service.ask(40)
        service.wait_for("ernie_pair_waiting_pairs", 30)
        service.stop()
        answers = [answer_of(connection) for connection in connections]
        assert [status for status, _ in answers] == [200] * 40
        assert {json.loads(content)["labels"][0] for _, content in answers} == {"odd"}
        service.end()


def test_sigterm_answers_connections_not_yet_accepted():
    """The process is suspended meanwhile, so that everything arrives at once."""
    with serving("--max_batch", "1", seconds=0.05) as service:
        service.process.send_signal(signal.SIGSTOP)
        connections = service.ask(30)
        service.stop()
        service.process.send_signal(signal.SIGCONT)
        assert [answer_of(connection)[0] for connection in connections] == [200] * 30
        service.end()


def test_sigterm_answers_requests_under_way_and_then_closes():
    with serving() as service:
        connections = [service.connect() for _ in range(4)]
        connections[1].sendall(HEAD[:20])
        connections[2].sendall(HEAD + BODY[:5])
        connections[3].sendall(HEAD + BODY)
        assert answer_of(connections[3])[0] == 200  # and the connection is kept alive
        service.stop()
        time.sleep(0.3)
        for connection, rest in zip(connections, (HEAD + BODY, HEAD[20:] + BODY, BODY[5:], HEAD + BODY)):
            connection.sendall(rest)
        for connection in connections:
            response = http.client.HTTPResponse(connection)
            response.begin()
            assert response.status == 200 and response.getheader("connection") in ("close", None)
            response.read()
            assert is_closed(connection, 5)
        service.end()


def test_requests_past_the_stop_timeout_get_503_with_a_reason():
    with serving(*ONE_BY_ONE, "--stop_seconds", "1", seconds=0.3) as service:
        connections = service.ask(30)
        service.wait_for("ernie_pair_waiting_pairs", 20)
        service.stop()
        answers = [answer_of(connection) for connection in connections]
        statuses = [status for status, _ in answers]
        assert set(statuses) == {200, 503} and statuses.count(503) > 10
        assert all(b"try again" in content for status, content in answers if status == 503)
        service.end()


def test_the_printed_curl_example_works_and_is_documented():
    from ernie_pair.service.bodies import curl_line

    with serving() as service:
        wait_until(lambda: len(service.said) >= 2)
        url, body = re.search(r"curl (\S+) -d '(.+)'$", service.said[1]).groups()
        done = subprocess.run(["curl", "-s", url, "-d", body], capture_output=True, timeout=60)
        assert json.loads(done.stdout)["labels"] == ["odd"]
    page = (ROOT / "docs" / "en" / "ship.md").read_text(encoding="utf-8")
    assert curl_line("127.0.0.1:8000") in page


FOREIGN = ("evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example")


@pytest.mark.parametrize("allowed, status, hosts", [
    ("", 421, FOREIGN),
    ("", 200, ("localhost", "LOCALHOST:1", "[::1]:8000", "10.0.0.7")),
    ("pairs.example", 200, ("pairs.example:8000",)),
    ("pairs.example", 421, ("evil.example",)),
    ("*", 200, ("anything.example",)),
])  # fmt: skip
def test_requests_for_a_foreign_host_are_refused(allowed, status, hosts):
    async def all_routes(client):
        for host in hosts:
            for method, path in (("GET", "/health"), ("POST", "/predict"), ("GET", "/"), ("GET", "/metrics")):
                answer = await client.request(method, path, content=BODY, headers={"host": host})
                assert answer.status_code == status
            assert status == 200 or "name it with --allowed_hosts" in answer.json()["error"]

    ask(Model(), all_routes, hosts=[allowed])
