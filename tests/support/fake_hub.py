"""A Hub on this machine that serves folders as models, by the protocol of huggingface_hub."""

import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ASKED = re.compile(r"/(?:api/models/)?(?P<name>[^/]+/[^/]+)/(?P<what>revision|tree|resolve)/(?P<rest>[^?]+)")


class FakeHub:
    """``models``: {org/name: its folder}; each has one commit, that of its files.

    ``refused``: {org/name: the status and the code of the error}; ``cut``: the bytes of a file that are
    sent at once, None: all; ``gate``: the others wait for it; ``asked``: the paths that were asked for.
    """

    def __init__(self):
        self.models, self.refused, self.cut, self.asked = {}, {}, None, []
        self.gate = threading.Event()
        self.gate.set()

    def files(self, name):
        folder = self.models[name]
        return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}

    def commit(self, name):
        return hashlib.sha1(repr(sorted(self.files(name).items())).encode()).hexdigest()

    def answer(self, path):
        """Return the status, the headers and the body of the answer to a request."""
        self.asked.append(path)
        found = ASKED.match(path)
        name = found["name"] if found else ""
        if name in self.refused or name not in self.models:
            status, code = self.refused.get(name, (401, "RepoNotFound"))
            return status, {"X-Error-Code": code, "X-Error-Message": code}, b""
        commit, files = self.commit(name), self.files(name)
        revision, _, file = found["rest"].partition("/")
        if revision not in ("main", commit):
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        if found["what"] == "revision":
            return 200, {}, json.dumps({"id": name, "modelId": name, "sha": commit}).encode()
        if found["what"] == "tree":
            rows = [{"type": "file", "path": p, "size": len(b), "oid": _etag(b)} for p, b in files.items()]
            return 200, {}, json.dumps(rows).encode()
        return 200, {"X-Repo-Commit": commit, "ETag": f'"{_etag(files[file])}"'}, files[file]


def _etag(content):
    return hashlib.sha1(content).hexdigest()


@contextmanager
def served(hub):
    """Serve ``hub`` and yield its address, the HF_ENDPOINT of who asks it."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.do_GET()

        def do_GET(self):
            status, headers, body = hub.answer(self.path)
            begin = int(re.findall(r"bytes=(\d+)-", self.headers.get("Range", "bytes=0-"))[0])
            status = 206 if status == 200 and begin else status
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(body) - begin)}.items():
                self.send_header(key, value)
            if status == 206:
                self.send_header("Content-Range", f"bytes {begin}-{len(body) - 1}/{len(body)}")
            self.end_headers()
            if self.command == "GET":
                is_file = "/resolve/" in self.path
                cut = hub.cut if is_file and hub.cut is not None else len(body)
                self.wfile.write(body[begin : max(begin, cut)])
                self.wfile.flush()
                hub.gate.wait(60)
                self.wfile.write(body[max(begin, cut) :])

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        hub.gate.set()
        server.shutdown()
        server.server_close()
