"""
Enrolment from files and from discovery over HTTP.
"""

from collections.abc import Mapping

from fastapi import APIRouter

from controlplane.kit.errors import FieldError, Invalid
from controlplane.nodes import enlisting
from controlplane.nodes.enrolment_schemas import EnrolmentOut
from controlplane.nodes.files import Form
from controlplane.web.call import Call
from controlplane.web.endpoint import endpoint
from controlplane.web.files import SentFile

router = APIRouter(tags=["nodes"])
FILES = "/v1/admin/enrolments"
LARGEST_FILE_BYTES = 8 * 1024 * 1024
MEDIA_TYPES: Mapping[str, Form] = {"text/csv": "csv", "application/yaml": "yaml"}
EXAMPLES = {
    "text/csv": "name,provider,site,block,leaf,rack,instance_type\ngpu-0041,rack7-bmc,osl1,b1,b1-l2,b1-r07,hgx-h100-8\n",
    "application/yaml": (
        "defaults: {provider: rack7-bmc, site: osl1, block: b1, leaf: b1-l2, rack: b1-r07, instance_type: hgx-h100-8}\n"
        "machines:\n- {name: gpu-0041, serial: 0047A, controller_url: 'https://10.0.7.41'}\n"
    ),
}


@endpoint(
    router,
    "POST",
    FILES,
    permission="nodes:write",
    audience="operator",
    status=202,
    answer=EnrolmentOut,
    summary="Enroll the machines of a file",
    dry_run=True,
    takes=EXAMPLES,
)
def enroll_file(call: Call, file: SentFile) -> EnrolmentOut:
    """
    Every machine of the file is known as the file says: new ones are enrolled, known ones changed where they may be. All of it or nothing:
    every line that cannot be used is named at once, and the same file again changes nothing. Up to 8 MiB and 20,000 machines.
    """
    form = MEDIA_TYPES.get(file.media_type)
    if form is None:
        words = f"Send Content-Type: {' or '.join(MEDIA_TYPES)}."
        raise Invalid(words, errors=[FieldError("header.Content-Type", "unsupported_media_type", words)])
    done = enlisting.enroll_file(call.session, file.data, form, call.sealer)
    call.audit_target = FILES
    call.audit_detail = {"created": len(done.created), "changed": len(done.changed), "unchanged": done.unchanged}
    for one in done.created[:1]:  # one call is enough: workers look for all that is due
        call.nudge("node", one.node_id)
    return EnrolmentOut.of(done)
