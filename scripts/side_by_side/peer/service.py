"""A plain service on sentence-transformers, run by the peer's Python: one text in, its vector out.

python -m side_by_side.peer.service FOLDER
"""

import socket
import sys
from typing import Any, Dict

import torch
import uvicorn
from fastapi import FastAPI
from sentence_transformers import SentenceTransformer

app = FastAPI()


@app.post("/v1/embeddings")
def embed(request: Dict[str, Any]):
    vector = app.state.model.encode(request["input"], show_progress_bar=False)
    return {"data": [{"index": 0, "embedding": vector.tolist()}]}


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[2]))
    app.state.model = SentenceTransformer(sys.argv[1], device="cpu")
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"at http://127.0.0.1:{listener.getsockname()[1]}", file=sys.stderr, flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])
