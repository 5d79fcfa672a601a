"""
Stands in for scontrol: hands its arguments to the fake slurmrestd and ends as that says.
"""

import json
import sys
import urllib.request

url, *argv = sys.argv[1:]
if argv[:2] == ["env", "TZ=UTC"]:
    argv = argv[2:]
body = json.dumps({"argv": argv[1:], "stdin": sys.stdin.read()}).encode()
call = urllib.request.Request(f"{url}/scontrol", data=body, headers={"Content-Type": "application/json"})
with urllib.request.urlopen(call, timeout=10) as answer:
    said = json.load(answer)
sys.stdout.write(said["out"])
sys.stderr.write(said["err"])
sys.exit(said["code"])
