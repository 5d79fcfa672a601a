"""
Whether an order can be taken: what it names exists, its parts fit together, and it is not sure to be refused.
"""

from collections import Counter
from typing import Any

from sqlalchemy.orm import Session

from controlplane.boots import service as boots
from controlplane.catalog import service as catalog
from controlplane.clusters.models import ClusterRow
from controlplane.clusters.states import KUBERNETES, Order, SetOrder
from controlplane.images import service as images
from controlplane.kit.access import Principal
from controlplane.kit.errors import FieldError, Invalid, NoCapacity
from controlplane.nodes import service as nodes
from controlplane.rendering.kubernetes.checking import QUORUMS

PLAIN = "raw"
OWN_ROLES = {"slurm": {"head", "login", "worker"}, KUBERNETES: {"control_plane", "worker"}}


def check_order(session: Session, order: Order) -> dict[str, catalog.InstanceType]:
    """
    Facts about every instance type, when the order names nothing unknown. Raises Invalid naming every field that is wrong.
    """
    facts = catalog.instance_facts(session)
    unknown = [
        FieldError(
            f"body.spec.node_sets.{place}.instance_type", "unknown_instance_type", f"There is no type {one.instance_type[:60]}."
        )
        for place, one in enumerate(order.sets)
        if one.instance_type not in facts
    ]
    if order.site not in catalog.site_names(session):
        unknown.append(FieldError("body.spec.site", "unknown_site", f"There is no site {order.site[:60]}."))
    if order.opens_nodes and order.login is None:
        words = "An order for nodes of one's own names the SSH keys that open them."
        unknown.append(FieldError("body.spec.login", "login_missing", words))
    if not order.opens_nodes and order.login is not None:
        unknown.append(
            FieldError("body.spec.login", "login_not_taken", f"The nodes of a {order.kind} cluster are not logged in to.")
        )
    if order.login is not None and order.login.user_data:
        boots.kind_of(order.login.user_data, where="body.spec.login.user_data")
    unknown += _check_roles(order)
    if len({one.name for one in order.sets}) < len(order.sets):
        unknown.append(FieldError("body.spec.node_sets", "duplicate_name", "Two node sets have the same name."))
    if unknown:
        raise Invalid(unknown[0].message, errors=unknown)
    return facts


def check_images(session: Session, principal: Principal, tenant_id: str, order: Order) -> None:
    """
    Every image that the order names may be used by it, is used from now on, and somebody in the site installs images of its format. Raises
    Invalid for images that the caller does not see or that go on no disk there, NotReady, NoCapacity.
    """
    found: dict[str, list[str]] = {}
    for place, one in enumerate(order.sets):
        if one.image is None:
            continue
        where = f"body.spec.node_sets.{place}.image"
        if not order.opens_nodes:
            words = f"The nodes of a {order.kind} cluster have no image of one's own."
            raise Invalid(words, errors=[FieldError(where, "image_not_taken", words)])
        found.setdefault(images.use_disk_image(session, principal, one.image, where), []).append(where)
    if not found:
        return
    pools = [one for one in nodes.read_pools(session, [order.site]) if not set(one.tenants) - {tenant_id}]
    if any(nodes.installs_images(pool, found) for pool in pools):
        return
    for image_format, fields in found.items():
        if image_format != PLAIN and any(nodes.installs_images(pool, [PLAIN]) for pool in pools):
            raise images.not_taken(image_format, fields)
    raise NoCapacity(f"No provider in {order.site} installs images.", code="product_not_available")


def check_format(session: Session, cluster: ClusterRow, image_format: str, field: str) -> None:
    """
    The cluster's provider takes images of this format, or none at all, which is not told here. Raises Invalid, naming the field.
    """
    pools = [pool for pool in nodes.read_pools(session, [cluster.site]) if pool.id == cluster.provider_id]
    if any(nodes.installs_images(pool, [PLAIN]) and not nodes.installs_images(pool, [image_format]) for pool in pools):
        raise images.not_taken(image_format, [field])


def image_formats(session: Session, order: Order) -> frozenset[str]:
    """
    The formats of the images that the order names.
    """
    return frozenset(images.formats_of(session, [one.image for one in order.sets if one.image is not None]).values())


def _check_roles(order: Order) -> list[FieldError]:
    """
    What is wrong with the parts of a product of one's own, or with naming them elsewhere.
    """
    own = [(kind, given) for kind, given in (("slurm", order.slurm), (KUBERNETES, order.kubernetes)) if given is not None]
    wrong = [
        FieldError(f"body.spec.{kind}", f"{kind}_not_taken", f"A {order.kind} cluster is no {kind.capitalize()}.")
        for kind, _ in own
        if kind != order.kind
    ]
    if wrong:
        return wrong
    taken = OWN_ROLES[order.kind] if own and not order.managed else {"worker"}
    words = "Only a Slurm of one's own (spec.slurm) has heads and logins, and a Kubernetes (spec.kubernetes) control planes."
    if order.managed:
        words = "The provider makes the control planes of a managed Kubernetes: order workers only."
    wrong = [
        FieldError(f"body.spec.node_sets.{place}.role", "role_not_taken", words)
        for place, one in enumerate(order.sets)
        if one.role not in taken
    ]
    return wrong or (_check_counts(order) if own and not order.managed else [])


def _check_counts(order: Order) -> list[FieldError]:
    counts = Counter({one.role: 0 for one in order.sets})
    for one in order.sets:
        counts[one.role] += one.count
    if order.kubernetes is not None:
        sets = sum(1 for one in order.sets if one.role == "control_plane")
        if sets == 1 and counts["control_plane"] in QUORUMS and counts["worker"]:
            return []
        words = "A Kubernetes of one's own has one node set of one, three or five nodes with the role control_plane, and workers."
        return [FieldError("body.spec.node_sets", "roles_invalid" if sets else "control_plane_missing", words)]
    if counts["head"] == 1 and counts["worker"]:
        return []
    words = "A Slurm of one's own has one node set of one node with the role head, and workers."
    return [FieldError("body.spec.node_sets", "roles_invalid" if counts["head"] else "head_missing", words)]


def refuse_if_hopeless(session: Session, order: Order) -> None:
    """
    Returns when the order may be accepted. Raises NoCapacity, with what is missing and what would fit, when it would surely be refused.
    """
    if order.wait or all(nodes.are_free(session, order.site, one.instance_type, one.count) for one in order.sets):
        return
    free = {(one.site, one.instance_type): one.free for one in nodes.availability(session, None, None)}
    for one in order.sets:
        here = free.get((order.site, one.instance_type), 0)
        if here < one.count:
            elsewhere = max(
                (count, site) for (site, kind), count in [*free.items(), (("", one.instance_type), 0)] if kind == one.instance_type
            )
            raise NoCapacity(
                f"{one.count} nodes of {one.instance_type} wanted in {order.site}: {one.count - here} more are needed.",
                instance_type=one.instance_type,
                site=order.site,
                requested=one.count,
                missing=one.count - here,
                alternative=_alternative(one, here, elsewhere),
            )


def _alternative(wanted: SetOrder, here: int, elsewhere: tuple[int, str]) -> dict[str, Any]:
    count, site = elsewhere
    if count >= wanted.count and site:
        return {"kind": "other_site", "site": site, "nodes": wanted.count, "detail": f"{site} could hold it now."}
    if here:
        return {"kind": "smaller_gang", "nodes": here, "detail": f"{here} nodes would fit here now."}
    return {"kind": "wait", "nodes": wanted.count, "detail": "Order with spec.wait = true to wait for capacity."}
