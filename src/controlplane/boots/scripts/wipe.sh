# shellcheck shell=bash
# Wipes every disk of the machine it runs on and reports what it read back. It runs from memory, on a boot whose purpose is a wipe,
# and ends at the first failing line. One line of JSON for each thing that was wiped goes to $BOOT_CHECKS.

[ "${BOOT_PURPOSE:-}" = wipe ] || { echo "this is not a boot for a wipe" >&2; exit 2; }

SAMPLE_KIB=64
SAMPLES=64
SYS=${WIPE_SYS:-/sys/block} # another place only where the wipe itself is tested
DEV=${WIPE_DEV:-/dev}

say() {
  printf '{"name":"%s","result":"%s","detail":"%s"}\n' "$1" "$2" "$(printf '%s' "$3" | tr -d '\042\134' | tr -c '[:print:]' ' ')" >>"$BOOT_CHECKS"
}

in_container() { systemd-detect-virt --quiet --container 2>/dev/null; }

# Names of disks: what can keep data, without what is made of them and without drives that only show an image.
disks() {
  local path name
  for path in "$SYS"/*; do
    [ -e "$path" ] || continue
    name=${path##*/}
    case $name in loop* | ram* | zram* | dm-* | md* | sr* | fd* | nbd*) continue ;; esac
    [ "$(cat "$path/size")" -gt 0 ] || continue
    # A container sees its machine's disks by name only: it cannot reach them, and they are not its own.
    if [ ! -b "$DEV/$name" ] && in_container; then continue; fi
    echo "$name"
  done
}

swap_on() { # the swap in use that is this disk or partition
  local area kind
  [ -r "$1/dev" ] || return 0
  while read -r area kind _; do
    [ "$kind" = partition ] || continue
    if [ "$((16#$(stat -L -c %t "$area"))):$((16#$(stat -L -c %T "$area")))" = "$(cat "$1/dev")" ]; then echo "$area"; fi
  done </proc/swaps
}

# What is made of a disk and its partitions is taken apart, the topmost first: volumes, mappings, arrays, swap. The system that wipes may
# have put together what a tenant left. Nothing here writes to a disk, and what is mounted stays: nothing that a tenant left mounts itself.
take_apart() {
  local part held
  for part in "$SYS/$1" "$SYS/$1/$1"*; do
    for held in "$part"/holders/*; do
      [ -e "$held" ] || continue
      held=${held##*/}
      take_apart "$held"
      case $held in
        dm-*) dmsetup remove --noudevsync "$(cat "$SYS/$held/dm/name")" >/dev/null 2>&1 || true ;;
        md*) echo clear >"$SYS/$held/md/array_state" 2>/dev/null || true ;;
      esac
    done
    for held in $(swap_on "$part"); do swapoff "$held" 2>/dev/null || true; done
  done
}

in_use() {
  local part
  for part in "$SYS/$1" "$SYS/$1/$1"*; do
    if [ -n "$(ls -A "$part/holders" 2>/dev/null)" ] || [ -n "$(swap_on "$part")" ]; then return 0; fi
    [ -r "$part/dev" ] || continue
    if awk -v dev="$(cat "$part/dev")" '$3 == dev { found = 1 } END { exit !found }' /proc/self/mountinfo; then return 0; fi
  done
  return 1
}

# Compared byte by byte: a short read, or one that fails, is not zero.
is_zero() { # device, offset in KiB, length in KiB
  cmp --silent --bytes=$(($3 * 1024)) <(dd if="$1" bs=1024 skip="$2" count="$3" iflag=direct,fullblock status=none 2>/dev/null) /dev/zero
}

reads_zero() { # device, size in KiB
  local n at
  is_zero "$1" 0 1024 && is_zero "$1" $(($2 - 1024)) 1024 || return 1
  for ((n = 0; n < SAMPLES; n++)); do
    at=$(((RANDOM * 32768 + RANDOM) * 4 % ($2 - SAMPLE_KIB) / 4 * 4))
    is_zero "$1" "$at" "$SAMPLE_KIB" || return 1
  done
}

erase() { # name, device
  case $1 in
    nvme*) if command -v nvme >/dev/null && nvme format "$2" --ses=1 --force >/dev/null 2>&1; then echo "secure erase"; return; fi ;;
  esac
  if blkdiscard --force --secure "$2" 2>/dev/null; then echo "secure discard"; return; fi
  echo "overwritten"
}

# Whatever closes a disk that it wrote makes udev look at it, and an array found there would be put together again.
udevadm settle --timeout=30 >/dev/null 2>&1 || true
udevadm control --stop-exec-queue >/dev/null 2>&1 || true
for name in $(disks); do take_apart "$name"; done

wiped=0
for name in $(disks); do
  device=$DEV/$name
  size_kib=$(($(cat "$SYS/$name/size") / 2))
  serial=$(cat "$SYS/$name/device/serial" 2>/dev/null | tr -d ' ' || true)
  if [ ! -b "$device" ]; then say "disk:$name" failed "no device"; exit 3; fi
  if in_use "$name"; then say "disk:$name" failed "in use"; exit 3; fi
  how=$(erase "$name" "$device")
  if [ "$how" = overwritten ] || ! reads_zero "$device" "$size_kib"; then
    blkdiscard --force --zeroout "$device" 2>/dev/null || dd if=/dev/zero of="$device" bs=4M oflag=direct status=none 2>/dev/null || true
    how="$how, zeroed"
  fi
  sync
  blockdev --flushbufs "$device"
  if ! reads_zero "$device" "$size_kib"; then say "disk:$name" failed "not zero after: $how"; exit 3; fi
  say "disk:$name" passed "$how; $size_kib KiB; serial ${serial:-unknown}"
  wiped=$((wiped + 1))
done
udevadm control --start-exec-queue >/dev/null 2>&1 || true
if [ "$wiped" -gt 0 ]; then
  say disks_counted passed "$wiped"
elif [ "${DISKLESS:-no}" = yes ]; then
  say disks_counted passed "0, and it is known to have none"
else
  say disks_counted not_measured "no disk was found"
fi

if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
  nvidia-smi --gpu-reset >/dev/null && say gpu_memory passed "every GPU was reset"
else
  say gpu_memory not_measured "no driver; power was cut before this boot"
fi
