"""
What makes a host part of its cluster: shell scripts that can be run again at any time, and that end, well or badly, after a bounded wait.
"""

from __future__ import annotations

from collections.abc import Iterator

from controlplane.rendering.kubernetes import layout
from controlplane.rendering.kubernetes.k3s import UNITS
from controlplane.rendering.kubernetes.members import UNIT
from controlplane.rendering.kubernetes.plan import API_PORT, KubernetesPlan
from controlplane.rendering.shell import Script, prelude

TRIES = 600
"""Looks, a second apart, for another host that is still booting; the variable TRIES overrides it."""
PRELUDE = prelude(TRIES)
STRANGER = "--kubeconfig=/dev/null --username=nobody --password=none"
"""How kubectl asks as nobody: without any name it asks its own input for one and fails. API servers do not look at names of this kind."""
ANOTHER = "another control plane of the cluster"
"""What a start script waits for that may not found."""
TOLD = 10
"""Lines of a unit's journal that a start script tells when the unit does not come up."""


def control_plane_script(plan: KubernetesPlan) -> Script:
    """
    Founds the cluster, or joins the one that is there; the same on every control plane.
    """
    body = _founding_kubeadm(plan) if plan.distribution == "kubeadm" else _founding_k3s(plan)
    charts = ["need helm"] if plan.addons.charts else []
    lines = [*charts, *_kernel(plan), *_peers(plan), *body, f"wait_for 'the API' {layout.kubectl(plan)} get --raw /readyz"]
    lines += [f"{layout.APPLY} || {{ sleep 5; {layout.APPLY}; }} # the API may have just begun"]
    lines += ["systemctl daemon-reload", f"systemctl enable --now --quiet {UNIT}.timer"]
    return _script(plan, "start-control-plane", lines)


def worker_script(plan: KubernetesPlan) -> Script:
    """
    Joins the cluster as soon as a control plane answers; the same on every worker.
    """
    body = _joining_kubeadm(plan) if plan.distribution == "kubeadm" else _joining_k3s()
    return _script(plan, "start-worker", [*_kernel(plan), *body])


def _founding_kubeadm(plan: KubernetesPlan) -> Iterator[str]:
    yield f"{layout.FOLLOW_VERSION} first"
    yield "need kubeadm kubelet kubectl containerd"
    yield from _services()
    yield from _entering(plan)
    yield f"if [ ! -e {layout.STAMP} ]; then"
    yield from _again()
    yield f"  way=found # who has begun to found goes on with it, whoever answers by now: {layout.STAMP}.founds"
    yield f"  [ -e {layout.STAMP}.founds ] || wait_for '{ANOTHER}' way_in"
    yield '  if [ "$way" = join ]; then'
    yield f"    enter {layout.JOIN_CONTROL_PLANE}"
    yield "  else"
    yield f"    touch {layout.STAMP}.founds"
    yield f"    (umask 077 && {{ cat {layout.INIT}; echo ---; cat {layout.CLUSTER}; }} > {layout.OURS}/found.yaml)"
    yield f"    kubeadm init --config {layout.OURS}/found.yaml $again"
    yield f"    rm -f {layout.OURS}/found.yaml"
    yield "  fi"
    yield f"  touch {layout.STAMP}"
    yield "fi"


def _joining_kubeadm(plan: KubernetesPlan) -> Iterator[str]:
    yield f"{layout.FOLLOW_VERSION} first"
    yield "need kubeadm kubelet containerd"
    yield from _services()
    yield from _entering(plan)
    yield f"if [ ! -e {layout.STAMP} ]; then"
    yield from _again()
    yield f"  enter {layout.JOIN}"
    yield f"  touch {layout.STAMP}"
    yield "fi"


def _entering(plan: KubernetesPlan) -> Iterator[str]:
    yield "enter() { # enter DOCUMENT: this host is in the cluster; each try goes on where the one before it ended"
    yield "  tries=0 begun="
    yield "  until"
    yield "    # a kubelet with a certificate makes its Node ready, and kubeadm starts none beside that, whatever it is to ignore"
    yield f"    [ ! -e {layout.KUBELET} ] || begun=--skip-phases=kubelet-start"
    yield '    kubeadm join --config "$1" $again $begun'
    yield "  do"
    yield "    tries=$((tries + 1))"
    yield f"    [ $((tries * 10)) -lt \"$TRIES\" ] || {{ echo '{plan.endpoint or plan.api_name} does not take this host' >&2; exit 1; }}"
    yield "    again=--ignore-preflight-errors=all"
    yield "    sleep 10"
    yield "  done"
    yield "}"


def _again() -> Iterator[str]:
    """
    A start that was cut off goes on where it was: kubeadm's phases keep what is there, its preflight checks do not like it.
    """
    yield "  again="
    yield f"  [ ! -e {layout.STAMP}.begun ] || again=--ignore-preflight-errors=all"
    yield f"  touch {layout.STAMP}.begun"


def _services() -> Iterator[str]:
    yield "systemctl enable --now --quiet containerd.service"
    yield "systemctl enable --quiet kubelet.service"


def _founding_k3s(plan: KubernetesPlan) -> Iterator[str]:
    yield f"{layout.FOLLOW_VERSION} first"
    yield "need k3s"
    yield f"install -d -m 0700 {layout.K3S_ROLE.rsplit('/', 1)[0]}"
    yield f"if [ ! -e {layout.STAMP} ]; then"
    yield f"  wait_for '{ANOTHER}' way_in"
    yield '  case "$way" in'
    yield f"    found) printf 'cluster-init: true\\n' > {layout.K3S_ROLE} ;;"
    yield f"    join) printf 'server: {layout.api_url(plan)}\\n' > {layout.K3S_ROLE} ;;"
    yield "  esac"
    yield "fi"
    yield from _start_k3s("control_plane")


def _joining_k3s() -> Iterator[str]:
    yield f"{layout.FOLLOW_VERSION} first"
    yield "need k3s"
    yield from _start_k3s("worker")


def _start_k3s(role: str) -> Iterator[str]:
    # without --no-block the start of an agent lasts until a server answers
    yield "systemctl daemon-reload"
    yield f"systemctl enable --quiet {UNITS[role]}"
    yield f"systemctl start --no-block {UNITS[role]}"
    yield f"(wait_for {UNITS[role]} systemctl is-active {UNITS[role]}) || {{ # a report that only says so helps nobody"
    yield f"  journalctl --unit={UNITS[role]} --lines={TOLD} --output=cat --no-pager >&2 || true"
    yield "  exit 1"
    yield "}"
    yield f"mkdir -p {layout.OURS}"  # no file of an agent stands there
    yield f"touch {layout.STAMP}"


def _kernel(plan: KubernetesPlan) -> Iterator[str]:
    yield "modprobe -a overlay br_netfilter || echo 'the kernel has these built in, or not at all' >&2"
    yield "sysctl --quiet --system || true"
    if plan.distribution == "kubeadm":
        yield "swapoff -a"


def _peers(plan: KubernetesPlan) -> Iterator[str]:
    program = "kubectl" if plan.distribution == "kubeadm" else "k3s kubectl"
    path = "/readyz" if plan.distribution == "kubeadm" else "/cacerts"  # k3s tells nothing else to strangers
    yield "peer_answers() { # peer_answers: another control plane of the cluster does"
    yield "  while read -r name address; do"
    yield '    [ "$name" != "$(hostname)" ] || continue'
    yield f'    {program} {STRANGER} --server="https://$address:{API_PORT}" \\'
    yield f"      --certificate-authority={layout.authority_path(plan)} \\"
    yield f"      --request-timeout=5s get --raw {path} </dev/null >/dev/null 2>&1 && return 0"
    yield f"  done < {layout.CONTROL_PLANES}"
    yield "  return 1"
    yield "}"
    yield "way_in() { # way_in: how this host comes into the cluster is known; read anew each time, as another may have to found it by now"
    yield "  way='join'"
    yield "  ! peer_answers || return 0"
    yield "  way=found"
    yield f'  [ "$(cat {layout.FOUNDER})" = "$(hostname)" ]'
    yield "}"


def _script(plan: KubernetesPlan, name: str, body: list[str]) -> Script:
    head = ["#!/bin/sh", f"# Makes this host part of the Kubernetes cluster {plan.cluster}. Safe to run again.", PRELUDE]
    return Script(name, "".join(f"{line}\n" for line in [*head, *body]))
