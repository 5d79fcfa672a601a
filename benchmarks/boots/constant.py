"""
The baseline: an application that answers every request of a booting machine with the same bytes, without tokens, database or content.
"""

from fastapi import FastAPI
from starlette.responses import Response

app = FastAPI()
CONTENT = b"#cloud-config\n{}\n"


@app.get("/healthz")
def tell_health() -> Response:
    return Response(b"ok")


@app.get("/v1/boot/{token}/{name}")
def get_constant(token: str, name: str) -> Response:
    del token, name
    return Response(CONTENT, media_type="text/plain")


@app.post("/v1/boot/{token}/{name}")
def post_constant(token: str, name: str) -> Response:
    del token, name
    return Response(b"{}", media_type="application/json")
