"""
Fabric checks on hosts that really boot: power-on, a system with tools on its disk, SSH between the hosts, outputs into the ledger, off.

The tools print recorded outputs, for there is no GPU and no RDMA here; `mpirun` is a stand-in that really starts them by the SSH that it is
told. All else is what runs on machines: the controller's calls, cloud-init, our agent and program, sshd, keys, and our routes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from controlplane.providers.adapters.simulated.checks import nccl_output, write_output
from tests.e2e.rack import Metal, done, enroll
from tests.factories.burning import prints, tool
from tests.hosts_kit import CACHE, LAB, Host
from tests.slurm_kit import SLOW

pytestmark = [*SLOW[1:], pytest.mark.timeout(1800)]
PATIENCE_S = 400.0
MPIRUN = r"""
own=0
# Takes the agent and the hosts from its arguments, and starts the program on each by that agent.
while [ $# -gt 0 ]; do
  case $1 in
    plm_rsh_agent) agent=$2; shift ;;
    --host) hosts=$2; shift ;;
    all_reduce_perf) break ;;
  esac
  shift
done
for host in ${hosts//,/ }; do
  name=$($agent "${host%:*}" hostname -I 2>>/var/log/mpirun.err) || { name=here; own=$((own + 1)); }
  echo "$host $name" >>/var/log/mpirun.hosts
done
[ "$own" = 1 ] || { cat /var/log/mpirun.err >&2; exit 1; }
exec "$@"
"""


def fit_out(host: Host) -> None:
    """The host's disk, which it starts from, has the tools; its devices stand in a folder, for the kernel has none."""
    disk = CACHE / "hosts" / "labs" / LAB / "hosts" / host.name / "disk"
    tools = disk / "usr/local/bin"
    prints(tools, "all_reduce_perf", nccl_output(1.0))
    prints(tools, "ib_write_bw", write_output(1.0))
    for name in ("all_reduce_perf", "ib_write_bw"):
        tool(tools, name, f"cat /usr/local/bin/{name}.text")
    tool(tools, "mpirun", MPIRUN)
    port = disk / "opt/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    settings = disk / "etc/systemd/system.conf.d"
    settings.mkdir(parents=True)
    (settings / "fabric.conf").write_text("[Manager]\nDefaultEnvironment=FABRIC_SYS=/opt/infiniband\n")


def check(metal: Metal, tool_name: str, **scope: Any) -> dict[str, Any]:
    """A fabric check after its end."""
    made = done(metal.operator.post("/v1/admin/fabric-checks", json={"scope": scope, "tool": tool_name}))
    path = f"/v1/admin/fabric-checks/{made['id']}"
    return metal.until(path, "done", "failed", "cancelled", within_s=PATIENCE_S)


def test_hosts_are_measured_against_each_other(metal: Metal) -> None:
    """Two hosts as a leaf, by a collective that one starts on the other, then by writes; both are free and off again."""
    nodes = enroll(metal, 2, boot="media", fabric_tools={"rails": ["mlx5_0"], "timeout_s": 60})
    for node_id in nodes:
        metal.until(f"/v1/admin/nodes/{node_id}", "available", "quarantined", within_s=PATIENCE_S)
    hosts = metal.lab.hosts[:2]
    for host in hosts:
        fit_out(host)
    whole = check(metal, "nccl-tests", kind="leaf", site="lab", leaf="leaf1")
    assert [(one["kind"], one["result"], one["detail"]) for one in whole["runs"]] == [
        ("leaf", "passed", ""),
        ("pair", "passed", ""),
    ]
    writes = check(metal, "ib_write_bw", kind="pair", node_id=nodes[0], peer_node_id=nodes[1])
    assert [(one["result"], one["detail"]) for one in writes["runs"]] == [("passed", "")]
    for found, metric in ((whole, "nccl_all_reduce_bus_bandwidth_largest"), (writes, "rdma_write_bandwidth_average")):
        ledger = done(metal.operator.get("/v1/admin/measurements", params={"run_id": found["id"], "limit": 200}))["items"]
        assert metric in {one["metric"] for one in ledger}
    for host, node_id in zip(hosts, nodes, strict=True):
        assert done(metal.operator.get(f"/v1/admin/nodes/{node_id}"))["status"]["state"] == "available"
        assert metal.lab.run("power", host.name, "status") == "off"
    disk = CACHE / "hosts" / "labs" / LAB / "hosts" / hosts[0].name / "disk"
    started = Path(disk / "var/log/mpirun.hosts").read_text().split()
    assert hosts[1].address in started
