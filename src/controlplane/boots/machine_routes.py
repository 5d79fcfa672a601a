"""
Boots over HTTP for the machines themselves.

Below `/v1/boot/{token}/` in the shape of NoCloud: whoever has the token is the machine. At `/latest/` in the shape of 169.254.169.254:
the machine is known by the address of the TCP connection, in configured networks only, and no header is believed about it. All else
is answered like a path that does not exist, before any query.

Source: cloud-init, "NoCloud" and "Phone Home"; Amazon EC2, "Instance metadata service version 2"; RFC 9110, section 14 for ranges.
"""

import hashlib
import json
import re
import time
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any
from urllib.parse import parse_qs

from starlette.requests import Request

from controlplane.boots import reporting
from controlplane.boots.disc import burn, packed
from controlplane.boots.schemas import AppliedIn, ReportIn
from controlplane.boots.seed import EMPTY, Content, Machine, by_path, look_up, meta_data, network_config, render, user_data
from controlplane.boots.service import facts_of
from controlplane.boots.states import BootLinks
from controlplane.images import service as images
from controlplane.kit.errors import FieldError, Invalid, NotFound, Unauthenticated, Unavailable
from controlplane.kit.secrets import Sealer
from controlplane.settings import Settings
from controlplane.web.edge import Network, parse_address
from controlplane.web.limits import Buckets, too_many
from controlplane.web.machine import FORM, GZIP, JSON, OCTETS, Lane, MachineCall, MachineLook, MachineReply, MachineRoutes
from controlplane.web.ranges import parse_wanted
from controlplane.web.schemas import read

BOOT = "/v1/boot/{token}"
LATEST = "/latest"
LARGEST_BODY_BYTES = 512 * 1024
BOOT_RATE_PER_S = 20.0
BOOT_BURST = 400
"""A machine that reads its image in small ranges asks often at first."""
TTL_HEADER = "x-aws-ec2-metadata-token-ttl-seconds"
TOKEN_HEADER = "x-aws-ec2-metadata-token"  # noqa: S105 - a header's name
LONGEST_TTL_S = 21_600
MOST_FIELDS = 32
OUTPUT_NAME = re.compile(r"[a-z_]{1,40}(\.[A-Za-z0-9_-]{1,40})?", re.ASCII)

routes = MachineRoutes()
LANES = (Lane("/v1/boot/", routes, LARGEST_BODY_BYTES), Lane("/latest/", routes, LARGEST_BODY_BYTES))


@dataclass(frozen=True, slots=True)
class Door:
    """
    What these routes need of the application; stands in `app.state.boots`.
    """

    links: BootLinks
    """Makes and verifies tokens."""
    sealer: Sealer
    """Opens blueprints."""
    networks: tuple[Network, ...] = ()
    """Where addresses are believed."""
    budget: Buckets = field(default_factory=lambda: Buckets(BOOT_RATE_PER_S, BOOT_BURST, clock=time.monotonic))
    """Requests of one boot."""

    def admit(self, token: str, *, for_image: bool = False) -> str:
        """
        The boot whose token it is, or whose image it opens; one budget holds for all that it asks. Raises NotFound, TooMany.
        """
        boot_id = self.links.verify_image(token) if for_image else self.links.verify(token)
        if boot_id is None:
            raise NotFound
        level = self.budget.take(boot_id)
        if not level.allowed:
            raise too_many("this machine", level)
        return boot_id


def door_of(settings: Settings, sealer: Sealer) -> Door:
    """
    The door as the settings say. Raises ValueError for a network that is none.
    """
    links = BootLinks.from_master(settings.machine_url, settings.master_key.get_secret_value(), settings.deployment)
    return Door(links, sealer, tuple(ip_network(one) for one in settings.metadata_networks))


def by_token(request: Request) -> str:
    """
    The boot whose token stands in the path. Raises NotFound, TooMany.
    """
    return _door(request).admit(request.path_params["token"])


def by_image_token(request: Request) -> str:
    """
    The boot whose token, or whose image's token, stands in the path. Raises NotFound, TooMany.
    """
    return _door(request).admit(request.path_params["token"], for_image=True)


def by_address(request: Request) -> str:
    """
    The address of the machine at the other end of the connection, where addresses are believed. Raises NotFound, TooMany.
    """
    door, peer = _door(request), request.scope.get("client")
    address = parse_address(str(peer[0])) if peer else None
    known = address is not None and any(address in network for network in door.networks)
    if not known or "x-forwarded-for" in request.headers or "forwarded" in request.headers:
        raise NotFound  # what came through somebody else is not the machine itself
    level = door.budget.take(str(address))
    if not level.allowed:
        raise too_many("this machine", level)
    return str(address)


def _of_boot(request: Request, boot_id: str) -> dict[str, Any]:
    del request
    return {"id": boot_id}


def _of_version(request: Request, boot_id: str) -> dict[str, Any]:
    known = request.headers.get("if-none-match", "").strip().removeprefix("W/").strip('"')
    number = int(known) if known.isascii() and known.isdigit() and len(known) < 16 else None  # noqa: PLR2004 - digits
    return {"id": boot_id, "known": number}


@routes.look(BOOT + "/meta-data", credential="boot_token", admit=by_token, question=reporting.WHOLLY, asked=_of_boot)
def get_boot_meta_data(look: MachineLook, boot_id: str) -> MachineReply:
    """
    Who the machine is.
    """
    del boot_id
    content, machine = _seen(look)
    return MachineReply(meta_data(content, machine.facts))


@routes.look(BOOT + "/user-data", credential="boot_token", admit=by_token, question=reporting.WHOLLY, asked=_of_boot)
def get_boot_user_data(look: MachineLook, boot_id: str) -> MachineReply:
    """
    What it is to do. The first time is noted.
    """
    del boot_id
    content, machine = _seen(look)
    made = user_data(content, machine)
    _note_fetched(look, machine)
    return MachineReply(made)


@routes.look(BOOT + "/vendor-data", credential="boot_token", admit=by_token, question=reporting.BRIEFLY, asked=_of_boot)
def get_boot_vendor_data(look: MachineLook, boot_id: str) -> MachineReply:
    """
    Nothing, in the form that cloud-init takes for it.
    """
    del look, boot_id
    return MachineReply(EMPTY)


@routes.look(BOOT + "/network-config", credential="boot_token", admit=by_token, question=reporting.BRIEFLY, asked=_of_boot)
def get_boot_network_config(look: MachineLook, boot_id: str) -> MachineReply:
    """
    How its ports are set up, where anything was given.
    """
    del boot_id
    made = network_config(facts_of(look.row))
    if made is None:
        raise NotFound
    return MachineReply(made)


@routes.look(BOOT + "/seed.iso", credential="boot_token", admit=by_token, question=reporting.WHOLLY, asked=_of_boot)
def get_boot_seed_image(look: MachineLook, boot_id: str) -> MachineReply:
    """
    All of it as an image for virtual media; ranges are answered.
    """
    del boot_id
    content, machine = _seen(look)
    reply = _ranged(burn(render(content, machine).documents()), look.request.headers.get("range", ""))
    _note_fetched(look, machine)
    return reply


@routes.look(BOOT + "/config-drive", credential="boot_token", admit=by_token, question=reporting.WHOLLY, asked=_of_boot)
def get_boot_config_drive(look: MachineLook, boot_id: str) -> MachineReply:
    """
    The same image in the form in which a provider that writes it to the machine's disk takes it.
    """
    del boot_id
    content, machine = _seen(look)
    made = packed(burn(render(content, machine).documents()))
    _note_fetched(look, machine)
    return MachineReply(made, "text/plain; charset=us-ascii")


@routes.look(BOOT + "/image", credential="boot_token", admit=by_image_token, question=reporting.IMAGE, asked=_of_boot)
def get_boot_image(look: MachineLook, boot_id: str) -> MachineReply:
    """
    The image that is written for this boot, whole or in the part that Range names; nothing for any other boot, or once it has its outcome.
    """
    del boot_id
    depot, headers = look.request.scope["app"].state.edge.images, look.request.headers
    if depot is None:
        raise Unavailable("This installation keeps no images.", code="no_image_store")
    content = images.Content(look.row.image_id, look.row.size_bytes, look.row.sha256)
    served = images.serve(depot.store, content, images.Asked(headers.get("range"), headers.get("if-range")))
    return MachineReply(b"", OCTETS, served.status, served.headers, served.pieces)


@routes.look(BOOT + "/files", credential="boot_token", admit=by_token, question=reporting.FILES, asked=_of_version)
def get_boot_files(look: MachineLook, boot_id: str) -> MachineReply:
    """
    The plain files as they are now; 304 for whoever has this version.
    """
    del boot_id
    version, files = look.row.version, look.row.files
    headers = {"ETag": f'"{version}"'}
    if files is None:
        return MachineReply(b"", JSON, 304, headers)
    return MachineReply(json.dumps({"version": version, "files": files}).encode(), JSON, headers=headers)


@routes.route("POST", BOOT + "/phone-home", credential="boot_token", admit=by_token, takes=FORM)
def post_boot_phone_home(call: MachineCall, boot_id: str) -> MachineReply:
    """
    The machine has phoned home; again changes nothing.
    """
    try:
        told = parse_qs(call.body.decode("ascii"), errors="strict", max_num_fields=MOST_FIELDS)
    except ValueError:
        raise Invalid("The form cannot be read.", errors=[FieldError("body", "invalid_form", "Send a URL-encoded form.")]) from None
    node_id = reporting.phone_home(call.session, boot_id, {name: values[0] for name, values in told.items()})
    _nudge(call, node_id)
    return _said({"phoned": True})


@routes.route("POST", BOOT + "/report", credential="boot_token", admit=by_token, takes=JSON)
def post_boot_report(call: MachineCall, boot_id: str) -> MachineReply:
    """
    What the machine says of itself; the state of the boot is answered.
    """
    told = read(ReportIn, call.body)
    state, node_id = reporting.take_report(call.session, boot_id, told.boot_id, told.report())
    _nudge(call, node_id)
    return _said({"state": state})


@routes.route("POST", BOOT + "/outputs/{name}", credential="boot_token", admit=by_token, takes=GZIP)
def post_boot_output(call: MachineCall, boot_id: str) -> MachineReply:
    """
    What a test printed is read into the ledger; how many figures it had is answered, or why it could not be read.
    """
    name = call.request.path_params["name"]
    if not OUTPUT_NAME.fullmatch(name):
        raise NotFound
    taken = reporting.take_output(call.session, boot_id, name, call.body)
    return _said({"figures": taken.figures, "failure": taken.failure})


@routes.route("POST", BOOT + "/console", credential="boot_token", admit=by_token, takes=OCTETS)
def post_boot_console(call: MachineCall, boot_id: str) -> MachineReply:
    """
    What the machine wrote is kept; where the next piece begins is answered.
    """
    given = call.request.query_params.get("offset", "")
    if given and not (given.isascii() and given.isdigit() and len(given) < 16):  # noqa: PLR2004 - digits
        raise Invalid("The offset is no number of bytes.", errors=[FieldError("query.offset", "invalid_offset", "Bytes.")])
    following = reporting.take_console(call.session, boot_id, call.body, int(given) if given else None)
    return _said({"next": following})


@routes.route("POST", BOOT + "/applied", credential="boot_token", admit=by_token, takes=JSON)
def post_boot_applied(call: MachineCall, boot_id: str) -> MachineReply:
    """
    Which version of the files the machine has.
    """
    told = read(AppliedIn, call.body)
    failure = "\n".join(f"{one.path}: {one.detail}" for one in told.failed)[:4000]
    _nudge(call, reporting.take_applied(call.session, boot_id, told.version, failure))
    return _said({"version": told.version})


@routes.route("PUT", LATEST + "/api/token", credential="address", admit=by_address)
def put_metadata_token(call: MachineCall, address: str) -> MachineReply:
    """
    A token for the other paths at this address, for as many seconds as the header asks.
    """
    row = reporting.boot_at(call.session, address)
    wanted = call.request.headers.get(TTL_HEADER, "")
    ttl_s = int(wanted) if wanted.isascii() and wanted.isdigit() and len(wanted) < 6 else 0  # noqa: PLR2004 - digits
    if not 1 <= ttl_s <= LONGEST_TTL_S:
        words = f"Between 1 and {LONGEST_TTL_S} seconds."
        raise Invalid("The token needs a time to live.", errors=[FieldError(f"header.{TTL_HEADER}", "invalid_ttl", words)])
    token = _door(call.request).links.session_token(row.id, int(row.now.timestamp()) + ttl_s)
    return MachineReply(token.encode(), headers={TTL_HEADER: str(ttl_s)})


@routes.route("GET", LATEST + "/user-data", credential="address_and_token", admit=by_address)
def get_metadata_user_data(call: MachineCall, address: str) -> MachineReply:
    """
    The same as by token.
    """
    content, machine = _content(call, _holder(call, address))
    reporting.note_fetched(call.session, machine)
    return MachineReply(user_data(content, machine))


@routes.route("GET", LATEST + "/meta-data/{path:path}", credential="address_and_token", admit=by_address)
def get_metadata(call: MachineCall, address: str) -> MachineReply:
    """
    One fact of the machine, or the names of those below the path.
    """
    content, machine = _content(call, _holder(call, address))
    found = look_up(by_path(content, machine.facts), call.request.path_params["path"])
    if found is None:
        raise NotFound
    return MachineReply(found)


def _door(request: Request) -> Door:
    door: Door = request.scope["app"].state.boots
    return door


def _reached_door(request: Request) -> Door:
    door = _door(request)
    if not door.links.base_url:
        raise Unavailable("This installation does not know under which address machines reach it.")
    return door


def _content(call: MachineCall, boot_id: str) -> tuple[Content, Machine]:
    door = _reached_door(call.request)
    return reporting.content_for(call.session, door.sealer, door.links, boot_id)


def _seen(look: MachineLook) -> tuple[Content, Machine]:
    door = _reached_door(look.request)
    return reporting.content_of(look.row, door.sealer, door.links)


def _note_fetched(look: MachineLook, machine: Machine) -> None:
    if machine.is_new:
        look.write(reporting.NOTE_FETCHED, {"id": machine.boot_id})


def _holder(call: MachineCall, address: str) -> str:
    """
    The boot at the address, when the request has a good token of it. Raises NotFound, Unauthenticated.
    """
    row = reporting.boot_at(call.session, address)
    token = call.request.headers.get(TOKEN_HEADER, "")
    if not _door(call.request).links.verify_session(token, row.id, int(row.now.timestamp())):
        raise Unauthenticated(f"Ask for a token with PUT {LATEST}/api/token and send it in {TOKEN_HEADER}.")
    return str(row.id)


def _ranged(image: bytes, wanted: str) -> MachineReply:
    headers = {"Accept-Ranges": "bytes", "ETag": f'"{hashlib.sha256(image).hexdigest()[:32]}"'}
    part = parse_wanted(wanted or None, len(image))
    if part is None:
        return MachineReply(image, OCTETS, headers=headers)
    if not part.length_bytes:
        return MachineReply(b"", OCTETS, 416, {**headers, "Content-Range": f"bytes */{len(image)}"})
    headers["Content-Range"] = f"bytes {part.start_bytes}-{part.end_bytes - 1}/{len(image)}"
    return MachineReply(image[part.start_bytes : part.end_bytes], OCTETS, 206, headers)


def _nudge(call: MachineCall, node_id: str | None) -> None:
    if node_id is not None:
        call.nudges.append(("node", node_id))


def _said(words: dict[str, Any]) -> MachineReply:
    return MachineReply(json.dumps(words).encode(), JSON)
