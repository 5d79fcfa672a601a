"""
Management controllers that answer at once: one process, one loop, the same tree for each, over plain HTTP on loopback.

Run as `python benchmarks/controllers/server.py PORT [--closes]`; ends on SIGTERM. A connection stays open for as long as its client wants;
with `--closes` it ends with each answer, as on some controllers.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

V1 = "/redfish/v1"
SYSTEM = f"{V1}/Systems/1"
CHASSIS = f"{V1}/Chassis/1"
GPUS = 8
WELL = {"State": "Enabled", "Health": "OK"}


def _ref(path: str) -> dict[str, str]:
    return {"@odata.id": path}


def _collection(*paths: str) -> dict[str, Any]:
    return {"Members": [_ref(path) for path in paths], "Members@odata.count": len(paths)}


def tree() -> dict[str, dict[str, Any]]:
    """
    A machine with eight GPUs, all well.
    """
    gpus = [f"{SYSTEM}/Processors/GPU{number}" for number in range(GPUS)]
    system = {"@odata.id": SYSTEM, "Id": "1", "SystemType": "Physical", "PowerState": "On", "Status": WELL}
    system |= {"Processors": _ref(f"{SYSTEM}/Processors"), "Links": {"Chassis": [_ref(CHASSIS)]}}
    system |= {"Actions": {"#ComputerSystem.Reset": {"target": f"{SYSTEM}/Actions/ComputerSystem.Reset"}}}
    found: dict[str, dict[str, Any]] = {
        f"{V1}/": {"Systems": _ref(f"{V1}/Systems"), "Chassis": _ref(f"{V1}/Chassis")},
        f"{V1}/Systems": _collection(SYSTEM),
        SYSTEM: system,
        f"{SYSTEM}/Processors": _collection(*gpus),
        f"{V1}/Chassis": _collection(CHASSIS),
        CHASSIS: {"@odata.id": CHASSIS, "Id": "1", "Name": "Chassis", "Status": WELL},
    }
    card = {"ProcessorType": "GPU", "Manufacturer": "NVIDIA", "Model": "H100", "Status": WELL}
    for path in gpus:
        found[path] = {"@odata.id": path, "Id": path.rpartition("/")[2], **card}
    return found


def _answers() -> dict[bytes, bytes]:
    made = {}
    for path, body in tree().items():
        text = json.dumps(body).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n"
        made[path.rstrip("/").encode()] = head.encode() + b"%s\r\n" + text
    return made


async def _serve(port: int, *, keeps: bool) -> None:
    answers = _answers()
    missing = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nContent-Type: application/json\r\n%s\r\n{}"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            kept = True
            while kept:
                head = await reader.readuntil(b"\r\n\r\n")
                kept = keeps and b"connection: close" not in head.lower()
                path = head.split(b" ", 2)[1].partition(b"?")[0].rstrip(b"/")
                writer.write(answers.get(path, missing) % (b"" if kept else b"Connection: close\r\n"))
                await writer.drain()
        except asyncio.IncompleteReadError:
            pass  # the client has what it wanted
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", port, backlog=1024)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), keeps="--closes" not in sys.argv))
