"""
Where machines of a fabric check meet: each by the token of its own boot, and told only of those that are in the same run now.

What is not admitted is answered like a path that does not exist.
"""

import json
import zlib
from dataclasses import asdict

from starlette.requests import Request

from controlplane.fabric_checks import reporting
from controlplane.fabric_checks.wire import ArrivalIn, WordIn
from controlplane.kit.errors import FieldError, Invalid
from controlplane.web.machine import GZIP, JSON, Lane, MachineCall, MachineReply, MachineRoutes
from controlplane.web.schemas import read

PREFIX = "/v1/fabric-runs/"
LARGEST_BODY_BYTES = 512 * 1024
LARGEST_WORD_BYTES = 4 * 1024 * 1024
AGAIN_S = 3.0
"""How soon a machine that waits asks again."""

routes = MachineRoutes()
LANES = (Lane(PREFIX, routes, LARGEST_BODY_BYTES),)


def by_token(request: Request) -> str:
    """
    The boot whose token stands in the path; it has one budget for all it sends. Raises NotFound, TooMany.
    """
    boot_id: str = request.scope["app"].state.boots.admit(request.path_params["token"])
    return boot_id


@routes.route("POST", PREFIX + "{token}", credential="boot_token", admit=by_token, takes=JSON)
def post_fabric_arrival(call: MachineCall, boot_id: str) -> MachineReply:
    """
    The machine is there; what it is to run now is answered, with the machines that are in the run, or that it waits.
    """
    heard = reporting.come(call.session, boot_id, read(ArrivalIn, call.body).arrival())
    if heard.check_id:
        call.nudges.append(("fabric_check", heard.check_id))
    told = {"errand": None if heard.errand is None else asdict(heard.errand), "again_s": AGAIN_S}
    return MachineReply(json.dumps(told).encode(), JSON)


@routes.route("POST", PREFIX + "{token}/{run}", credential="boot_token", admit=by_token, takes=GZIP)
def post_fabric_word(call: MachineCall, boot_id: str) -> MachineReply:
    """
    What the machine says of its part in the run is taken, once.
    """
    word = read(WordIn, _unpacked(call.body)).word()
    check_id = reporting.take_word(call.session, boot_id, call.request.path_params["run"], word)
    if check_id:
        call.nudges.append(("fabric_check", check_id))
    return MachineReply(json.dumps({"taken": True}).encode(), JSON)


def _unpacked(packed: bytes) -> bytes:
    """
    The one whole gzip member that these bytes are. Raises Invalid.
    """
    stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        raw = stream.decompress(packed, LARGEST_WORD_BYTES + 1)
    except zlib.error:
        raw = b""
    if len(raw) > LARGEST_WORD_BYTES or not stream.eof or stream.unused_data:
        words = f"Send one whole gzip member of at most {LARGEST_WORD_BYTES} bytes."
        raise Invalid(words, errors=[FieldError("body", "invalid_gzip", words)])
    return raw
