"""
The API as a server process loads it: `uvicorn --factory controlplane.serving:create_app`.
"""

from typing import TYPE_CHECKING

from controlplane.kit.loading import load

if TYPE_CHECKING:
    from fastapi import FastAPI


def create_app() -> "FastAPI":
    """
    The application of this process's settings.
    """
    app: FastAPI = load("controlplane.app").create_app()
    return app
