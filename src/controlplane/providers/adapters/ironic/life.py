"""
Tenancies: claimed, deployed, released; and power.

The claim is one PATCH that writes our marks and Ironic's own `instance_uuid` together. Ironic lets nobody overwrite an `instance_uuid`,
so of two tenancies one is refused, whatever their writers have read. Where several changes of state are needed, each call makes the
next one and answers Busy until the last is begun: the caller repeats, and a repeat goes on from where the node stands.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from controlplane.providers.adapters.ironic.config import IronicConfig
from controlplane.providers.adapters.ironic.marks import KEPT_TOKENS, Marks, Tenancy, stamp
from controlplane.providers.adapters.ironic.nodes import Node, Nodes, need_service
from controlplane.providers.adapters.ironic.states import (
    CLEANING,
    DELETABLE,
    DEPLOYING,
    SERVING,
    is_foreign,
    is_ours,
    power_of,
)
from controlplane.providers.errors import Busy, Refused
from controlplane.providers.machines import Deployment

LOOK_AGAIN_S = 0.5
SOON_S = 0.25
"""A node that needs no cleaning is on Ironic's market about this long after it was told to go there."""


class Life:
    """
    Tenancies of the nodes of one Ironic.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def deploy(self, wanted: Deployment) -> None:
        """
        Ironic has begun to deploy, or has done so under this token before. Refused for a token that is over and for a held node.
        """
        node = self._nodes.get(wanted.ref)
        refuse_foreign(node)
        if wanted.token in node.marks.ended:
            raise Refused(f"tenancy {wanted.token} of {node.ref} is over", code="tenancy_over")
        tenancy = node.marks.tenancy
        if tenancy is not None and tenancy.token != wanted.token:
            if tenancy.stage == "held":
                raise Refused(f"{node.ref} is held by {tenancy.token}", code="machine_held")
            if tenancy.stage == "releasing":
                raise Busy(f"{node.ref} is still being released by {tenancy.token}", retry_in_s=2.0)
        if tenancy is None or tenancy.token != wanted.token:
            node = self._claim(node, wanted)
        elif tenancy.tenant != wanted.tenant_id:
            raise Refused(f"tenancy {wanted.token} of {node.ref} is another tenant's", code="tenancy_over")
        self._begin(node, wanted)

    def release(self, ref: str, token: str, *, accepted_at: datetime) -> None:
        """
        The tenancy is ending: detached, off, and being torn down. A token that never came is remembered as over.
        """
        node = self._nodes.get(ref)
        refuse_foreign(node)
        tenancy = node.marks.tenancy
        if tenancy is not None and tenancy.token != token and tenancy.stage != "released":
            if token not in node.marks.ended:
                self._nodes.remember(node, node.marks.ending(token))
            return
        if token in node.marks.ended and (tenancy is None or tenancy.token != token or tenancy.stage == "released"):
            return
        if tenancy is None or tenancy.token != token:
            tenancy = Tenancy(token)
        if tenancy.stage == "held":
            over = replace(tenancy, stage="releasing", accepted_at=stamp(accepted_at))
            node = self._nodes.remember(node, replace(node.marks.ending(token), tenancy=over, wiped_since=False))
        self._tear_down(node)

    def power(self, ref: str, *, on: bool, token: str) -> None:
        """
        Ironic has begun to switch power. A switch that a newer one has replaced is not done again.
        """
        node = self._nodes.get(ref)
        refuse_foreign(node)
        known = node.marks.powers
        if token in known[1:]:
            return
        if not known or known[0] != token:
            node = self._nodes.remember(node, replace(node.marks, powers=(token, *known)[:KEPT_TOKENS]))
        if (node.target_power_state or node.power_state) != ("power on" if on else "power off"):
            self._nodes.switch(node, on=on)

    def rescue(self, ref: str, token: str, *, password: str) -> None:
        """
        Ironic has begun to boot the tenancy's node into its rescue system. Refused when the token does not hold the node.
        """
        node = self._held_by(ref, token)
        if node.state in {"rescue", "rescuing", "rescue wait"}:
            return
        self._nodes.provision(node, "rescue", rescue_password=password)

    def unrescue(self, ref: str, token: str) -> None:
        """
        Ironic has begun to boot the node back into its own system.
        """
        node = self._held_by(ref, token)
        if node.state in {"active", "unrescuing"}:
            return
        self._nodes.provision(node, "unrescue")

    def settle(self, node: Node) -> Node:
        """
        The node after what Ironic leaves undone: a deployed node is on, and its hour is remembered; a node that was torn down is
        taken off Ironic's market until the next tenancy, so that nobody gets it unwiped.
        """
        tenancy = node.marks.tenancy
        if tenancy is None or is_foreign(node):
            return node
        if tenancy.stage == "held" and node.state == "active" and is_ours(node) and not tenancy.ready_at:
            if power_of(node) == "on":
                return self._nodes.remember(node, replace(node.marks, tenancy=replace(tenancy, ready_at=node.changed)))
            if node.target_power_state is None:
                self._nodes.switch(node, on=True)
                return self._nodes.get(node.ref)
        if tenancy.stage == "releasing" and node.instance_uuid is None:
            return self._park(node, tenancy)
        return node

    def _claim(self, node: Node, wanted: Deployment) -> Node:
        """
        The node is ours alone. Raises Refused when another tenancy was faster.
        """
        interface, info = _image_of(self._nodes.config, wanted)
        if node.state not in {"available", "manageable", "enroll"}:
            raise Busy(f"{node.ref} is {node.state!r} at Ironic", retry_in_s=2.0)
        need_service(node)
        tenancy = Tenancy(wanted.token, "held", wanted.tenant_id, wanted.cluster_id, wanted.network, wanted.image)
        patch: list[dict[str, Any]] = [
            {"op": "add", "path": "/instance_uuid", "value": self._nodes.names.instance_uuid(wanted.token)},
            {"op": "add", "path": "/instance_info", "value": info},
            {"op": "add", "path": "/automated_clean", "value": False},
        ]
        if interface:
            patch.append({"op": "add", "path": "/deploy_interface", "value": interface})
        marks = replace(node.marks, tenancy=tenancy, task=None)
        try:
            return self._nodes.remember(node, marks, *patch)
        except Refused:
            again = self._nodes.get(node.ref)
            if again.marks.tenancy is None or again.marks.tenancy.token != wanted.token or not is_ours(again):
                raise
            return again

    def _begin(self, node: Node, wanted: Deployment) -> None:
        """
        The claimed node is being deployed, whatever state a crash has left it in.
        """
        if node.state in DEPLOYING | SERVING or node.state in {"deploy failed", "error"}:
            return
        if not is_ours(node):
            raise Refused(f"the instance of {wanted.token} was taken off {node.ref} at Ironic", code="tenancy_lost")
        if node.state == "available":
            drive = wanted.config_drive_url or config_drive(wanted, str(node.our_instance_uuid))
            self._nodes.provision(node, "active", configdrive=drive)
            return
        if node.state not in CLEANING:
            ready = self._nodes.to_manageable(node)
            self._nodes.provision(ready, "provide")
            raise Busy(f"{node.ref} is being made available", retry_in_s=SOON_S)
        raise Busy(f"{node.ref} is being made available", retry_in_s=LOOK_AGAIN_S)

    def _tear_down(self, node: Node) -> None:
        if node.state in {"deleting", *CLEANING}:
            return
        if node.state in (DEPLOYING | SERVING) - DELETABLE:
            raise Busy(f"{node.ref} is {node.state!r}: Ironic ends that first", retry_in_s=2.0)
        self._nodes.detach_all(node)
        if power_of(node) != "off":
            if node.target_power_state != "power off":
                self._nodes.switch(node, on=False)
            raise Busy(f"{node.ref} is being powered off", retry_in_s=LOOK_AGAIN_S)
        if node.state in DELETABLE:
            self._nodes.provision(node, "deleted")
        elif node.instance_uuid is not None:
            # Claimed, never begun: nothing to tear down but the claim.
            nothing: list[dict[str, Any]] = [
                {"op": "remove", "path": "/instance_uuid"},
                {"op": "add", "path": "/instance_info", "value": {}},
            ]
            self._nodes.remember(node, node.marks, *nothing)

    def _park(self, node: Node, tenancy: Tenancy) -> Node:
        if node.state == "available":
            self._nodes.provision(node, "manage")
            return self._nodes.get(node.ref)
        if node.state not in {"manageable", "enroll"}:
            return node
        if power_of(node) != "off":
            if node.target_power_state is None:
                self._nodes.switch(node, on=False)
            return node
        return self._nodes.remember(node, replace(node.marks, tenancy=replace(tenancy, stage="released")))

    def _held_by(self, ref: str, token: str) -> Node:
        node = self._nodes.get(ref)
        refuse_foreign(node)
        tenancy = node.marks.tenancy
        if tenancy is None or tenancy.token != token or tenancy.stage != "held" or not is_ours(node):
            raise Refused(f"{node.ref} is not held by {token}", code="machine_not_held")
        return node


def refuse_foreign(node: Node) -> None:
    """
    Raises Refused for a node on which somebody else's tenancy, or somebody else's text in our key, stands.
    """
    if node.unreadable:
        raise Refused(f"our key in the extra of {node.ref} holds something that we did not write", code="machine_foreign")
    if is_foreign(node):
        raise Refused(
            f"{node.ref} is held at Ironic by instance {node.instance_uuid or '(none named)'}, which is not ours: it is left alone",
            code="machine_foreign",
        )


def is_held(marks: Marks) -> bool:
    """
    Whether a tenancy stands, or has not yet ended.
    """
    return marks.tenancy is not None and marks.tenancy.stage != "released"


def _image_of(config: IronicConfig, wanted: Deployment) -> tuple[str, dict[str, Any]]:
    """
    The deploy interface, empty for the node's own, and the `instance_info`. Raises Refused for an image that is not deployed here.
    """
    if wanted.own_image is not None:
        own = config.own_images
        if own is None or wanted.own_image.format not in own.formats:
            known = "none" if own is None else ", ".join(own.formats)
            raise Refused(
                f"tenants' images of the format {wanted.own_image.format} are not deployed here; taken: {known}",
                code="image_not_taken",
            )
        return own.deploy_interface, own.instance_info(wanted.own_image)
    image = config.images.get(wanted.image)
    if image is None:
        known = ", ".join(sorted(config.images)) or "none"
        raise Refused(f"no image is called {wanted.image!r} in this provider's config; known: {known}", code="image_unknown")
    return image.deploy_interface, image.instance_info()


def config_drive(wanted: Deployment, instance_uuid: str) -> dict[str, Any]:
    """
    What a machine is told at its first boot that is given no drive of its own, in Ironic's form.

    Nothing of the provider's is in it: tenants see their own ids only.
    """
    return {
        "meta_data": {
            "uuid": instance_uuid,
            "name": wanted.token,
            "hostname": wanted.token.replace("_", "-"),
            "meta": {"allocation_id": wanted.token, "cluster_id": wanted.cluster_id, "network": wanted.network},
        }
    }
