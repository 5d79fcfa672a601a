"""
Which user-data is taken.
"""

from __future__ import annotations

import pytest

from controlplane.boots.userdata import LONGEST_BYTES, kind_of
from controlplane.kit.errors import Invalid

MIME = """Content-Type: multipart/mixed; boundary="b"
MIME-Version: 1.0

--b
Content-Type: {kind}

{body}
--b--
"""


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("#cloud-config\npackages: [htop]\n", "text/cloud-config"),
        ("#!/bin/sh\necho hi\n", "text/x-shellscript"),
        ("#cloud-boothook\n#!/bin/sh\n", "text/cloud-boothook"),
        ("## template: jinja\n#cloud-config\nfqdn: {{ v1.local_hostname }}\n", "text/jinja2"),
        ("#cloud-config-archive\n- '#!/bin/sh'\n- {type: text/cloud-config, content: 'a: 1'}\n", "text/cloud-config-archive"),
        (MIME.format(kind="text/x-shellscript", body="#!/bin/sh\n"), "multipart/mixed"),
        (MIME.format(kind="text/plain", body="#cloud-config\na: 1\n"), "multipart/mixed"),
    ],
)
def test_kinds_are_known_by_how_they_begin(text: str, kind: str) -> None:
    """Each kind that cloud-init reads and that cannot harm ours is taken."""
    assert kind_of(text) == kind


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "unknown_user_data"),
        ("hello", "unknown_user_data"),
        ("#include\nhttp://169.254.169.254/\n", "unknown_user_data"),
        ("#part-handler\n", "unknown_user_data"),
        ("#cloud-config-jsonp\n[]", "unknown_user_data"),
        ("#cloud-config\n", "invalid_cloud_config"),
        ("#cloud-config\n- a\n", "invalid_cloud_config"),
        ("#cloud-config\na: [\n", "invalid_yaml"),
        ("#cloud-config\n" + "[" * 3000, "invalid_yaml"),
        ("#cloud-config\nusers: bob\n", "invalid_cloud_config"),
        ("#cloud-config-archive\na: 1\n", "invalid_archive"),
        ("#cloud-config-archive\n- '#include http://x'\n", "unknown_user_data"),
        ("#cloud-config-archive\n- {type: text/x-include-url, content: 'http://x'}\n", "unknown_user_data"),
        ("#cloud-config-archive\n- {content: 1}\n", "invalid_archive"),
        (MIME.format(kind="text/x-shellscript", body="#include http://x"), "invalid_script"),
        (MIME.format(kind="text/x-include-url", body="http://x"), "unknown_user_data"),
        (MIME.format(kind="application/gzip", body="x"), "unknown_user_data"),
        ("MIME-Version: 1.0\n\nhello", "invalid_mime"),
        ("#!" + "x" * LONGEST_BYTES, "too_long"),
        ("#!/bin/sh\n\0", "invalid_text"),
        ("#!/bin/sh\n\ud800", "invalid_text"),
    ],
)
def test_what_could_end_the_boot_unsaid_is_refused(text: str, code: str) -> None:
    """Unknown, damaged, fetching and reader-changing user-data is refused with a code before any machine sees it."""
    with pytest.raises(Invalid) as caught:
        kind_of(text)
    assert [one.code for one in caught.value.errors] == [code]
