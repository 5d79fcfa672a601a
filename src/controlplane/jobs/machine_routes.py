"""
Output of jobs, sent by the machines they run on: where no file system is shared, nobody else can read it.

The token in the path is that of the machine's boot. What is not admitted is answered like a path that does not exist.
"""

import json
import re

from starlette.requests import Request

from controlplane.jobs import reporting
from controlplane.jobs.states import PIECE_BYTES
from controlplane.kit.errors import FieldError, Invalid
from controlplane.web.machine import JSON, OCTETS, Lane, MachineCall, MachineReply, MachineRoutes

PREFIX = "/v1/job-output/"
OFFSET = re.compile(r"[0-9]{1,15}", re.ASCII)

routes = MachineRoutes()
LANES = (Lane(PREFIX, routes, PIECE_BYTES),)


def by_token(request: Request) -> str:
    """
    The boot whose token stands in the path; it has one budget for all it sends. Raises NotFound, TooMany.
    """
    boot_id: str = request.scope["app"].state.boots.admit(request.path_params["token"])
    return boot_id


@routes.route("POST", PREFIX + "{token}/{attempt}", credential="boot_token", admit=by_token, takes=OCTETS)
def post_job_output(call: MachineCall, boot_id: str) -> MachineReply:
    """
    What an attempt printed is kept; where the next piece begins is answered, whether the attempt is over, and whether more is wanted.
    """
    asked = call.request.query_params
    offset = asked.get("offset", "")
    if not OFFSET.fullmatch(offset):
        raise Invalid("The offset is no number of bytes.", errors=[FieldError("query.offset", "invalid_offset", "Bytes.")])
    begin, end = ("1" in asked.getlist(name) for name in ("begin", "end"))
    if begin and call.body:
        raise Invalid("A beginning brings no output.", errors=[FieldError("query.begin", "not_empty", "Send it without a body.")])
    piece = reporting.Piece(call.request.path_params["attempt"], int(offset), call.body, begin=begin, end=end)
    taken = reporting.take_output(call.session, boot_id, piece)
    if taken.job_id is not None:
        call.nudges.append(("job", taken.job_id))
    told = {"next": taken.next, "over": taken.over, "closed": taken.closed}
    return MachineReply(json.dumps(told).encode(), JSON)
