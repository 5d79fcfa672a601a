"""
Puts a tenant's image on the disk of the machine it runs on: `disk` chooses where, `image` writes it, `verify` reads it back. It is sent as
it is, once for each verb, and runs from memory on whatever Python 3 came with the operator's system (3.7 or later).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import json
import os
import platform
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

SYS = Path(os.environ.get("IMAGE_SYS", "/sys/block"))  # another place only where the program itself is tested
DEV = Path(os.environ.get("IMAGE_DEV", "/dev"))
PAUSE_S = float(os.environ.get("IMAGE_PAUSE_S", "2"))
SIZE_BYTES = int(os.environ["IMAGE_SIZE_BYTES"])
SHA256 = os.environ["IMAGE_SHA256"]
PIECE_BYTES = 4 * 1024 * 1024
HEAD_BYTES = 1024 * 1024
TIMEOUT_S = 60
MOST_FAILURES = 30
LONGEST_PAUSE_S = 30.0
BLKFLSBUF = 0x1261
QCOW = b"QFI\xfb"
NO_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd")


def fact(path: Path) -> str:
    """
    What the kernel says there; empty where it says nothing.
    """
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def in_use(name: str) -> bool:
    """
    Whether the disk, or a part of it, is mounted or held by something made of it.
    """
    mounted = {line.split()[2] for line in fact(Path("/proc/self/mountinfo")).splitlines()}
    parts = [SYS / name, *(SYS / name).glob(name + "*")]
    return any(fact(one / "dev") in mounted or any((one / "holders").glob("*")) for one in parts)


def chosen() -> str:
    """
    The disk that this boot has chosen, and no other from then on: what is written may hold volumes or arrays that the system here puts to
    use by itself, and then the written disk would look like one to stay away from.
    """
    try:
        lines = Path(os.environ["BOOT_CHECKS"]).read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        with contextlib.suppress(ValueError):  # a line that a power cut has halved
            one = json.loads(line)
            if one["name"] == "image_disk":
                return str(one["detail"]).partition(",")[0]
    return choose()


def choose() -> str:
    """
    The name of the disk to write: the smallest that stays in the machine, is not in use and holds the image; of those that the operator
    prefers (`root_disk`: the beginning of a name, or a serial number) where that is said.
    """
    hint = os.environ.get("ROOT_DISK", "")
    found, small = [], 0
    for path in sorted(SYS.iterdir()):
        size_bytes = int(fact(path / "size") or 0) * 512
        wanted = not hint or path.name.startswith(hint) or fact(path / "device/serial") == hint
        movable = fact(path / "removable") == "1" or fact(path / "ro") == "1"
        if path.name.startswith(NO_DISKS) or movable or not wanted or not size_bytes or in_use(path.name):
            continue
        if size_bytes < SIZE_BYTES:
            small += 1
            continue
        found.append((size_bytes, len(path.name), path.name))
    if not found:
        said = " that the operator's settings name" if hint else ""
        raise SystemExit("no disk%s can take the image of %d bytes; %d are too small" % (said, SIZE_BYTES, small))
    return min(found)[2]


def disk() -> None:
    """
    The disk is known, and the image is one for this machine. Nothing was written.
    """
    wanted, is_ = os.environ["IMAGE_ARCH"], platform.machine()
    if wanted != is_:
        raise SystemExit("the image is for %s, and this machine is %s" % (wanted, is_))
    name = chosen()
    say("image_disk", "%s, %s bytes" % (name, int(fact(SYS / name / "size")) * 512))


def image() -> None:
    """
    The image stands on the disk, and what came is what was declared; it was fetched on from where it had come to after each break.
    """
    device = os.open(str(DEV / chosen()), os.O_RDWR)
    try:
        digest, at, failures, told = hashlib.sha256(), 0, 0, 0
        while at < SIZE_BYTES:
            before = at
            for piece in pieces(at):
                if piece.startswith(QCOW) and not at:
                    raise SystemExit("the image is a QEMU disk and not a disk as it is")
                digest.update(piece)
                put(device, at, piece)
                at += len(piece)
                if at * 10 // SIZE_BYTES > told:
                    told = at * 10 // SIZE_BYTES
                    say("image_written:%d" % (told * 10), "%d of %d bytes" % (at, SIZE_BYTES))
            failures = 0 if at > before else failures + 1
            if failures > MOST_FAILURES:
                raise SystemExit("the image stopped to come at byte %d of %d" % (at, SIZE_BYTES))
            if at < SIZE_BYTES:
                print("the image broke off at byte %d of %d" % (at, SIZE_BYTES), flush=True)
                time.sleep(min(LONGEST_PAUSE_S, PAUSE_S * (failures + 1)))
        os.fsync(device)
        check(device, "what came", digest.hexdigest())
    finally:
        os.close(device)


def pieces(at: int) -> Iterator[bytes]:
    """
    The image from this byte on, as far as it comes. Ends the program where it is refused.
    """
    headers = {"Range": "bytes=%d-" % at, "If-Range": '"%s"' % SHA256}
    request = urllib.request.Request(os.environ["BOOT_URL"] + "image", headers=headers)  # noqa: S310 - the plan's own address
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            if answer.status != 206:
                raise SystemExit("the part of the image that was asked for did not come")
            left = SIZE_BYTES - at
            while left:
                piece = answer.read(min(PIECE_BYTES, left))
                if not piece:
                    return
                left -= len(piece)
                yield piece
    except urllib.error.HTTPError as error:
        if error.code not in {408, 425, 429} and error.code < 500:
            raise SystemExit("the image is refused: %d" % error.code) from None
    except http.client.HTTPException:
        return
    except OSError as error:
        if getattr(error, "filename", None):
            raise
        return


def put(device: int, at: int, piece: bytes) -> None:
    """
    All of the piece is written there.
    """
    done = 0
    while done < len(piece):
        done += os.pwrite(device, piece[done:], at + done)


def verify() -> None:
    """
    What the disk gives back is the image; else its beginning is gone, so that nothing starts from it.
    """
    device = os.open(str(DEV / chosen()), os.O_RDWR)
    try:
        os.posix_fadvise(device, 0, 0, os.POSIX_FADV_DONTNEED)
        with contextlib.suppress(OSError):  # a plain file, where the program itself is tested
            fcntl.ioctl(device, BLKFLSBUF)
        digest, at = hashlib.sha256(), 0
        while at < SIZE_BYTES:
            piece = os.pread(device, min(PIECE_BYTES, SIZE_BYTES - at), at)
            if not piece:
                break
            digest.update(piece)
            at += len(piece)
        check(device, "what the disk gives back", digest.hexdigest())
        say("image_verified", "SHA-256 " + SHA256)
    finally:
        os.close(device)


def check(device: int, what: str, found: str) -> None:
    """
    The digest is the declared one. Else the disk's beginning is erased and the program has ended.
    """
    if found != SHA256:
        put(device, 0, bytes(min(HEAD_BYTES, SIZE_BYTES)))
        os.fsync(device)
        raise SystemExit("%s is not the image: its SHA-256 is %s, declared is %s" % (what, found, SHA256))


def say(name: str, detail: str) -> None:
    """
    The report tells of it.
    """
    print(name, detail, flush=True)
    with Path(os.environ["BOOT_CHECKS"]).open("a", encoding="utf-8") as checks:
        checks.write(json.dumps({"name": name, "result": "passed", "detail": detail}) + "\n")


if __name__ == "__main__":
    {"disk": disk, "image": image, "verify": verify}[sys.argv[1]]()
