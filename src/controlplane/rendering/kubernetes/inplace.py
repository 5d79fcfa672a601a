"""
Bringing a host to the version that its cluster has by now: a list of who has which, and a program that fetches, installs and follows what
kubeadm and k3s ask for. It is run again until it is done, and does nothing after that.

Source: kubernetes.io, "Upgrading kubeadm clusters", "Upgrading Linux nodes": API servers before any kubelet, the first by `upgrade apply`,
others by `upgrade node`; docs.k3s.io, "Manual Upgrades": servers first, one at a time, by a restart with the new program.
"""

from __future__ import annotations

from collections.abc import Iterator

from controlplane.rendering.kubernetes import layout
from controlplane.rendering.kubernetes.files import RenderedFile, Role, text_file
from controlplane.rendering.kubernetes.k3s import UNITS
from controlplane.rendering.kubernetes.plan import API_PORT, KubernetesPlan
from controlplane.rendering.shell import prelude

MARK = "controlplane.internal/api-version"
"""Annotation of control planes: what the API server on this very host has said that it is."""
LOG = f"{layout.OURS}/follow-version.log"
TAIL = 5
"""Lines of the log that are told of a try that failed."""
PATIENCE = 900
"""Looks, a second apart, for an API server or a unit that was started with another version."""


def version_files(plan: KubernetesPlan, role: Role) -> tuple[RenderedFile, ...]:
    """
    The list and the program. With `first` the program only installs, before the host joins. Without, it ends well once the host is what the
    list says; until then it says how far it is and ends badly. With `now` it does the work before it ends.
    """
    lines = [f"{one.name} {one.version} {one.part}" for one in sorted(plan.ahead, key=lambda one: one.name)]
    return (
        text_file(layout.VERSIONS, [*lines, f"* {plan.version} all"], on_change=layout.FOLLOW_VERSION),
        text_file(layout.FOLLOW_VERSION, ["#!/bin/sh", *_program(plan, role)], mode=0o755),
    )


def _program(plan: KubernetesPlan, role: Role) -> Iterator[str]:
    leads, k3s = role == "control_plane", plan.distribution == "k3s"
    lead, others = ("k3s", "") if k3s else ("kubeadm", "kubelet kubectl" if leads else "kubelet")
    yield "# Brings this host to the Kubernetes that the list says. Safe to run again."
    yield prelude(PATIENCE)
    yield "while read -r name VERSION part; do"
    yield '  case $name in "$(hostname)" | "*") break ;; esac'
    yield f"done < {layout.VERSIONS}"
    yield "export VERSION"
    yield from _commands(plan)
    yield from _has()
    yield 'if [ "${1:-}" = first ]; then # before it joins: what joins has the version of what is there'
    yield f"  [ ! -e {layout.STAMP} ] || exit 0"
    yield from _first(plan, f"{lead} {others}".strip(), "k3s" if k3s else "kubelet")
    yield "  exit 0"
    yield "fi"
    yield f'[ "$name" != "*" ] && [ -e {layout.STAMP} ] || exit 0 # a host that is not named stays as it is'
    yield f'[ "$(cat {layout.LEVEL} 2>/dev/null)" != "$VERSION $part" ] || exit 0'
    yield from _in_background()
    yield f"has {lead} || {{ fetch 9>&-; PROGRAMS={lead} put 9>&-; }}"
    yield f'has {lead} || {{ echo "the operator\'s commands left $(told {lead}) in place" >&2; exit 1; }}'
    yield from _bring_k3s(role) if k3s else _bring_kubeadm(role, others)
    yield f'printf \'%s %s\\n\' "$VERSION" "$part" > {layout.LEVEL}'
    yield f"rm -f {LOG} {LOG}.new"


def _commands(plan: KubernetesPlan) -> Iterator[str]:
    how = plan.programs
    no_way = 'echo "no way to get Kubernetes $VERSION is known" >&2; exit 1'
    for name, text in (("fetch", how.fetch if how else ""), ("put", how.install if how else no_way)):
        yield f"{name}() ("
        yield "  export PROGRAMS" if name == "put" else "  :"
        yield from (f"  {line}" for line in text.splitlines())
        yield ")"


def _has() -> Iterator[str]:
    yield "told() { # told PROGRAM: its version as it says it"
    yield "  case $1 in"
    yield "    kubeadm) kubeadm version -o short ;;"
    yield "    kubelet) kubelet --version ;;"
    yield "    k3s) k3s --version | head -n 1 ;;"
    yield "  esac 2>/dev/null || true"
    yield "}"
    yield 'has() { case "$(told "$1") " in *"v$VERSION "* | *"v$VERSION+"*) ;; *) return 1 ;; esac; }'


def _first(plan: KubernetesPlan, programs: str, probe: str) -> Iterator[str]:
    yield f"  ! has {probe} || exit 0"
    if plan.programs is not None:
        yield "  fetch"
        yield f'  PROGRAMS="{programs}" put'
        yield f'  has {probe} || {{ echo "the operator\'s commands left $(told {probe}) in place" >&2; exit 1; }}'
        return
    yield f"  minor=$(told {probe} | sed -n 's/.*v1\\.\\([0-9]*\\)\\..*/\\1/p')"
    yield "  ours=${VERSION#1.}"
    yield '  [ "${minor:-0}" -le "${ours%%.*}" ] || { # an API server takes no kubelet that is newer than itself'
    yield f'    echo "this host has $(told {probe}), and its cluster $VERSION" >&2'
    yield "    exit 1"
    yield "  }"


def _in_background() -> Iterator[str]:
    """
    Whoever runs the program does not wait for as long as images are pulled and daemons come back.
    """
    yield f"exec 9>{LOG}.lock"
    yield 'if [ "${1:-}" != now ]; then'
    yield '  flock -n 9 || { echo "Kubernetes $VERSION is being installed" >&2; exit 1; }'
    yield f'  [ ! -s {LOG} ] || {{ echo "the last try ended with:" >&2; tail -n {TAIL} {LOG} >&2; }}'
    yield f'  setsid "$0" now >{LOG}.new 2>&1 </dev/null 9>&- &'
    yield '  echo "Kubernetes $VERSION is being installed" >&2'
    yield "  exit 1"
    yield "fi"
    yield "flock -w 10 9  # held by whoever started us, who ends now, or by another try"
    yield f"trap '[ \"$?\" = 0 ] || [ ! -e {LOG}.new ] || mv {LOG}.new {LOG}' EXIT"


def _bring_kubeadm(role: Role, others: str) -> Iterator[str]:
    if role == "control_plane":
        yield from _own_api("kubectl --kubeconfig=/etc/kubernetes/admin.conf")
        yield "if ! serves; then"
        yield "  agreed=$(ask --namespace kube-system get configmap kubeadm-config -o go-template='{{.data.ClusterConfiguration}}')"
        yield '  case "$agreed" in # the first brings the cluster\'s own configuration along, the others follow it'
        yield '    *"kubernetesVersion: v$VERSION"*) kubeadm upgrade node 9>&- ;;'
        yield '    *) kubeadm upgrade apply "v$VERSION" --yes 9>&- ;;'
        yield "  esac"
        yield "fi"
        yield from _tell()
        yield 'if [ "$part" = all ]; then'
    else:
        yield "kubeadm upgrade node 9>&-"
        yield "if :; then"
    yield f'  has kubelet || PROGRAMS="{others}" put 9>&-'
    yield '  has kubelet || { echo "the operator\'s commands left $(told kubelet) in place" >&2; exit 1; }'
    yield "  systemctl daemon-reload"
    yield "  systemctl restart kubelet.service"
    yield "  wait_for kubelet.service systemctl is-active kubelet.service"
    yield "fi"


def _bring_k3s(role: Role) -> Iterator[str]:
    unit = UNITS[role]
    yield "systemctl daemon-reload"
    yield f"systemctl restart --no-block {unit}"
    yield f"wait_for {unit} systemctl is-active {unit}"
    if role == "control_plane":
        yield from _own_api("k3s kubectl --kubeconfig=/etc/rancher/k3s/k3s.yaml")
        yield from _tell()


def _own_api(kubectl: str) -> Iterator[str]:
    yield f'address=$(sed -n "s/^$(hostname) //p" {layout.CONTROL_PLANES})'
    yield f'ask() {{ {kubectl} --server="https://$address:{API_PORT}" --request-timeout=20s "$@" </dev/null; }}'
    yield 'serves() { case "$(ask get --raw /version 2>/dev/null)" in *"\\"v$VERSION\\""* | *"\\"v$VERSION+"*) ;; *) return 1 ;; esac; }'


def _tell() -> Iterator[str]:
    yield 'wait_for "this host\'s API server" serves'
    yield f'ask annotate --overwrite node "$(hostname)" "{MARK}=$VERSION" >/dev/null'
