"""
What can go wrong while the product runs on one machine.

    LocalError                  carries what is wrong and what to do next
    ├── DataDirectoryHeld       another `up` runs on the same data directory
    ├── PortTaken               PORT is in use
    ├── StartFailed             a child ended or was not ready in time
    └── ServerMissing           an embedded server is not installed, or cannot run here
"""

from __future__ import annotations


class LocalError(Exception):
    """
    Something keeps the product from running here; `remedy` says what to do next.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy


class DataDirectoryHeld(LocalError):
    """
    Another process runs on the same data directory.
    """


class PortTaken(LocalError):
    """
    The port for the API is in use.
    """


class StartFailed(LocalError):
    """
    A child process ended, or was not ready, before its deadline.
    """


class ServerMissing(LocalError):
    """
    An embedded server is not installed or cannot run on this machine.
    """
