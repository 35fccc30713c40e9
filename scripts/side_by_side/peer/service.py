"""A plain service on sentence-transformers, run by the peer's Python: one text in, its vector out.

python -m side_by_side.peer.service FOLDER THREADS
"""

import socket
import sys
from typing import Any, Dict

from side_by_side.turns import tune_malloc


def serve(folder: str, threads: int) -> None:
    import torch
    import uvicorn
    from fastapi import FastAPI
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    app, model = FastAPI(), SentenceTransformer(folder, device="cpu")

    @app.post("/v1/embeddings")
    def embed(request: Dict[str, Any]):
        vector = model.encode(request["input"], show_progress_bar=False)
        return {"data": [{"index": 0, "embedding": vector.tolist()}]}

    listener = socket.create_server(("127.0.0.1", 0))
    print(f"at http://127.0.0.1:{listener.getsockname()[1]}", file=sys.stderr, flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


if __name__ == "__main__":
    tune_malloc()  # before torch is loaded
    serve(sys.argv[1], int(sys.argv[2]))
