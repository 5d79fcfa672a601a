"""
Whom clients of providers trust: files of authorities are read once, and again when they were written anew.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest

from controlplane.providers.tls import trusted, trusting_all
from tests.tls_door import self_signed

MINUTE_NS = 60_000_000_000


def authority(folder: Path) -> Path:
    """A file with a certificate that vouches for itself."""
    folder.mkdir()
    return self_signed(folder)[0]


def test_clients_share_what_was_read(tmp_path: Path) -> None:
    """A second client does not read the same file again, and each file has a trust of its own."""
    one, other = authority(tmp_path / "one"), authority(tmp_path / "other")
    assert trusted(str(one)) is trusted(str(one))
    assert trusted(str(one)) is not trusted(str(other))
    assert trusted() is trusted()


def test_a_file_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    """An authority that was replaced is no longer trusted by clients that are made afterwards."""
    file, new = authority(tmp_path / "old"), authority(tmp_path / "new")
    before = trusted(str(file)).get_ca_certs()
    written_ns = file.stat().st_mtime_ns
    file.write_text(new.read_text())
    os.utime(file, ns=(written_ns + MINUTE_NS, written_ns + MINUTE_NS))
    after = trusted(str(file)).get_ca_certs()
    assert after == trusted(str(new)).get_ca_certs()
    assert after[0]["serialNumber"] != before[0]["serialNumber"]


def test_names_and_certificates_are_checked(tmp_path: Path) -> None:
    """Who asks for no check gets a context of its own; all others check."""
    assert not trusting_all().check_hostname
    for context in (trusted(), trusted(str(authority(tmp_path / "one")))):
        assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_what_cannot_be_read_is_told_each_time(tmp_path: Path) -> None:
    """A file that is missing is looked for again; one without a certificate is refused."""
    missing = tmp_path / "missing.pem"
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            trusted(str(missing))
    missing.write_text("nothing of use")
    with pytest.raises(ssl.SSLError):
        trusted(str(missing))
