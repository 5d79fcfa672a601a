"""
Tools of a burn-in that print what the real ones printed, for a machine whose check runs under a real shell.
"""

from __future__ import annotations

from pathlib import Path

from tests.factories.qualification import burn, nccl, write_bw
from tests.unit.measurements import smi_samples, test_linpack
from tests.unit.measurements.test_nccl import WHOLE as NCCL

GPUS = 2
ALL = "gpu_state 20 0\ngpu_diagnosis 20 2\ngpu_burn 20 10\ngpu_collectives 20 0\nlinpack 20 0\nrdma_loopback 20 0"
LINPACK = test_linpack.ROW + test_linpack.CHECK + test_linpack.end(1)
DIAGNOSIS = """\
{"DCGM Diagnostic": {"test_categories": [{"category": "Deployment", "tests": [
  {"name": "Denylist", "results": [{"status": "Pass"}]}]}]}}
"""


def tool(folder: Path, name: str, script: str) -> None:
    """
    The program of this name is the script.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/bash\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


def prints(folder: Path, name: str, text: str, *, code: int = 0) -> None:
    """
    The program of this name prints the text, byte for byte, and ends with the code.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.text").write_bytes(text.encode())
    tool(folder, name, f"cat {folder}/{name}.text; exit {code}")


def fit_out(folder: Path, *, devices: tuple[str, ...] = ("mlx5_0", "mlx5_1")) -> dict[str, str]:
    """
    The folder has every tool of a machine of two GPUs, all of which pass; the environment in which its check finds them.
    """
    tools = folder / "tools"
    (tools / "smi.text").parent.mkdir(parents=True, exist_ok=True)
    (tools / "smi.text").write_text(smi_samples.XML, encoding="utf-8")
    tool(tools, "nvidia-smi", f'if [ "$1" = -L ]; then printf "GPU 0: x\\nGPU 1: x\\n"; else cat {tools}/smi.text; fi')
    prints(tools, "dcgmi", DIAGNOSIS)
    prints(tools, "gpu_burn", burn(faulty=False))
    prints(tools, "all_reduce_perf", NCCL)
    prints(tools, "xhpl", LINPACK)
    prints(tools, "ib_write_bw", write_bw(391.5))
    prints(tools, "ip", "2: eth0: <BROADCAST,UP> mtu 1500 state UP\n")
    for device in devices:
        port = folder / "sys" / device / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text("4: ACTIVE\n", encoding="utf-8")
    (folder / "hpl").mkdir()
    (folder / "hpl" / "HPL.dat").write_text("HPLinpack benchmark input file\n", encoding="utf-8")
    return {"CHECK_SYS": str(folder / "sys"), "CHECK_HPL": str(folder / "hpl"), "PATH": f"{tools}:/usr/bin:/bin"}


def slower(speed_gb_per_s: float) -> str:
    """
    An all-reduce of this speed.
    """
    return nccl(speed_gb_per_s)
