"""
Workers and control planes as lists on the control planes, and a program that makes them true: labels for places, drains for those that
leave, and no Node for those that are gone. Hosts join by themselves, so a node that no list names is left alone: it may have joined before
the list came. A control plane that is gone is taken out of etcd before its Node goes, so whoever does not see the Node knows both.

Source: kubernetes.io, "Safely Drain a Node": evictions respect disruption budgets, so they are asked for again until none is left;
etcd.io, "Runtime reconfiguration": a member is removed before another takes its place, and etcd refuses what would cost the quorum;
k3s, pkg/etcd/member_controller.go: a server's Node goes only when its member has gone, and a server that runs on would come back.
"""

from __future__ import annotations

from collections.abc import Iterator

from controlplane.rendering.kubernetes import layout
from controlplane.rendering.kubernetes.files import RenderedFile, text_file
from controlplane.rendering.kubernetes.k3s import UNITS
from controlplane.rendering.kubernetes.plan import KubernetesPlan, Worker

MARK = "controlplane.internal/leaving"
"""Annotation of nodes that we have cordoned: other cordons are somebody else's. `asked`, and `drained` when nothing is left on it."""
PLACES = {"block": "block", "leaf": "leaf", "rack": "rack", "nvlink_domain": "nvlink-domain"}
"""Parts of a position, and the labels below `controlplane.internal/` that show them."""
UNIT = "follow-members"
EVERY_S = 20


def member_files(plan: KubernetesPlan) -> tuple[RenderedFile, ...]:
    """
    The list, the program and the timer that runs it.
    """
    start = f"systemctl start --no-block {UNIT}.service"
    return (
        text_file(layout.MEMBERS, map(_line, plan.ordered), on_change=start),
        text_file(layout.LEADS, _leads(plan), on_change=start),
        text_file(layout.FOLLOW, ["#!/bin/sh", *_program(plan)], mode=0o755),
        text_file(f"/etc/systemd/system/{UNIT}.service", _SERVICE, on_change="systemctl daemon-reload"),
        text_file(f"/etc/systemd/system/{UNIT}.timer", _TIMER, on_change="systemctl daemon-reload"),
    )


def _leads(plan: KubernetesPlan) -> Iterator[str]:
    """
    A place is of no use there; where one was that is gone may be: a member of etcd that never started has no name.
    """
    yield from (f"{one.name} {one.standing} {one.address if one.standing == 'gone' else '-'} - - - leads" for one in plan.leads)
    yield from (
        f"{one.name} gone {one.address} - - - leads" if one.address else f"{one.name} gone - - - -" for one in plan.departed
    )


def _line(worker: Worker) -> str:
    places = (getattr(worker.position, part) or "-" for part in PLACES)
    return " ".join((worker.name, worker.standing, *places))


def _program(plan: KubernetesPlan) -> Iterator[str]:
    yield "# Makes the list of workers true: labels, cordons and drains, and no Node for who is gone. Safe to run again."
    yield "set -u"
    yield f'ask() {{ command {layout.kubectl(plan)} --request-timeout=20s "$@"; }}'
    yield 'kubectl() { ask "$@" </dev/null; }'
    yield f'if grep -q "^$(hostname) gone " {layout.LEADS}; then # what has left must not come back by itself'
    yield f"  systemctl disable --now --quiet {_SERVES[plan.distribution]} {UNIT}.timer"
    yield "  exit 0"
    yield "fi"
    yield "kubectl get --raw /readyz >/dev/null || { echo 'the API does not answer' >&2; exit 1; }"
    yield "value() { case $1 in -) printf -- - ;; *) printf '=%s' \"$1\" ;; esac; } # a place that is not known has no label"
    yield from _EMPTY
    yield from _PART[plan.distribution]
    yield "failed=0"
    yield f"listed=$(cat {layout.MEMBERS} {layout.LEADS})"
    yield f"while read -r name standing {' '.join(PLACES)} role; do"
    yield '  case "$standing $role" in "gone leads") part "$name" "$block" || { failed=1; continue; } ;; esac'
    yield "  # shellcheck disable=SC2016 # the template is kubectl's"
    yield (
        '  mark=$(kubectl get node "$name" --ignore-not-found'
        f" -o go-template='{{{{.metadata.name}}}}:{{{{with .metadata.annotations}}}}{{{{index . \"{MARK}\"}}}}{{{{end}}}}')"
        " || { failed=1; continue; }"
    )
    yield '  [ -n "$mark" ] || continue # not there: it has not joined, or is gone already'
    yield "  case $standing in"
    yield "    stays)"
    labels = " ".join(f'"controlplane.internal/{label}$(value "${part}")"' for part, label in PLACES.items())
    yield f'      [ -n "$role" ] || kubectl label --overwrite node "$name" {labels} >/dev/null || failed=1'
    yield "      case $mark in *:asked | *:drained)"
    yield f'        kubectl uncordon "$name" >/dev/null && kubectl annotate node "$name" {MARK}- >/dev/null || failed=1 ;;'
    yield "      esac ;;"
    yield "    leaves)"
    yield "      case $mark in *:drained) continue ;; esac"
    yield f'      kubectl annotate --overwrite node "$name" {MARK}=asked >/dev/null && kubectl cordon "$name" >/dev/null || failed=1'
    yield f'      if empty "$name"; then kubectl annotate --overwrite node "$name" {MARK}=drained >/dev/null || failed=1'
    yield "      else failed=1; fi ;;"
    yield "    gone)"
    yield '      kubectl delete node "$name" --ignore-not-found --wait=false >/dev/null || failed=1 ;;'
    yield "  esac"
    yield "done <<END"
    yield "$listed"
    yield "END"
    yield 'exit "$failed"'


_PODS = (
    '{{range .items}}{{$kind := "-"}}{{range .metadata.ownerReferences}}{{if .controller}}{{$kind = .kind}}{{end}}{{end}}'
    '{{.metadata.namespace}} {{.metadata.name}} {{$kind}}{{"\\n"}}{{end}}'
)
_EMPTY = (
    "empty() { # empty NODE: nothing is on it that could be lost; what is was asked to go, as far as its budgets allow",
    "  # shellcheck disable=SC2016 # the template is kubectl's",
    f"  pods=$(kubectl get pods --all-namespaces --field-selector \"spec.nodeName=$1\" -o go-template='{_PODS}') || return 1",
    "  left=0",
    "  while read -r space pod kind; do",
    '    case "$kind" in "" | DaemonSet | Node) continue ;; esac # of every node, or of the kubelet itself',
    "    left=1",
    '    printf \'{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"%s","namespace":"%s"}}\' "$pod" "$space" |',
    '      ask create --raw "/api/v1/namespaces/$space/pods/$pod/eviction" -f - >/dev/null',
    "  done <<EOF",
    "$pods",
    "EOF",
    '  [ "$left" = 0 ]',
    "}",
)
_SERVES = {"kubeadm": "kubelet.service", "k3s": UNITS["control_plane"]}
_PKI = "/etc/kubernetes/pki/etcd"
_PART = {
    "kubeadm": (
        "etcdctl() { # as this host's own member, which asks the others",
        '  kubectl exec --namespace kube-system "etcd-$(hostname)" -- etcdctl --endpoints=https://127.0.0.1:2379 \\',
        f'    --cacert={_PKI}/ca.crt --cert={_PKI}/server.crt --key={_PKI}/server.key "$@"',
        "}",
        "part() { # part NAME ADDRESS: etcd has no member of this name; it refuses what would cost its quorum",
        "  members=$(etcdctl member list) || return 1",
        '  id=$(printf \'%s\\n\' "$members" | sed -n "s/^\\([0-9a-f]*\\), [a-z]*, $1, .*/\\1/p")',
        f'  if [ -z "$id" ] && ! grep -q " $2\\$" {layout.CONTROL_PLANES}; then # nor one that never started, where nobody is by now',
        '    id=$(printf \'%s\\n\' "$members" | sed -n "s|^\\([0-9a-f]*\\), unstarted, , https://$2:2380, .*|\\1|p")',
        "  fi",
        '  [ -z "$id" ] || etcdctl member remove "$id" >/dev/null',
        "}",
    ),
    "k3s": ("part() { :; } # k3s takes the member out before it lets the Node go",),
}
_SERVICE = (
    "[Unit]",
    "Description=Makes the list of this cluster's workers true",
    "",
    "[Service]",
    "Type=oneshot",
    f"ExecStart={layout.FOLLOW}",
)
_TIMER = (
    "[Unit]",
    "Description=Looks at this cluster's workers from time to time",
    "",
    "[Timer]",
    "OnBootSec=60",
    f"OnUnitInactiveSec={EVERY_S}",
    "AccuracySec=1",  # systemd's own is a minute: a worker that leaves would wait for it twice
    "",
    "[Install]",
    "WantedBy=timers.target",
)
