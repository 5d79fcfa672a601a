#!/bin/bash
# build.sh KERNEL_TREE OUT: a Debian that lives in memory, with the distribution's own cloud-init, python3 and sshd -> OUT/initrd.gz.
# KERNEL_TREE holds lib/modules of the kernel that boots it. Needs root, mmdebstrap, cpio and a Debian mirror; some two minutes.
set -euo pipefail

kernel=${1:?usage: build.sh KERNEL_TREE OUT}
out=${2:?usage: build.sh KERNEL_TREE OUT}
here=$(cd "$(dirname "$0")" && pwd)
modules=(virtio_pci virtio_rng virtio_net virtio_blk ahci sd_mod sr_mod isofs vfat nls_ascii nls_cp437 nls_iso8859-1 button evdev efivarfs)
packages=(mount cloud-init python3 openssh-server iproute2 udhcpc udev kmod socat procps util-linux-extra)

mkdir -p "$out"
work=$(mktemp -d -p "$out")
trap 'rm -rf "$work"' EXIT
root=$work/root
chmod 755 "$work"

TMPDIR=$work mmdebstrap --quiet --variant=apt --include="$(IFS=,; echo "${packages[*]}")" \
  --aptopt='Apt::Install-Recommends "false"' \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  bookworm "$root"

rm -rf "${root:?}"/var/cache/apt/* "${root:?}"/var/lib/apt/lists/* "${root:?}"/usr/share/i18n "${root:?}"/etc/ssh/ssh_host_*
# What no boot here asks for is a third of it, and a machine under emulation unpacks slowly.
rm -rf "${root:?}"/usr/share/perl "${root:?}"/usr/lib/x86_64-linux-gnu/{perl,gconv} "${root:?}"/usr/lib/udev/hwdb.{bin,d} "${root:?}"/var/lib/dpkg/info
rm -f "${root:?}"/usr/lib/x86_64-linux-gnu/libperl.so.*
install -m 755 "$here/init" "$root/init"
install -m 644 "$here/cloud.cfg" "$root/etc/cloud/cloud.cfg"
find "$root/etc/cloud/cloud.cfg.d" -name "*.cfg" ! -name 05_logging.cfg -delete

# The kernel's tree has thousands of modules, of which these and what they need are kept.
version=$(basename "$kernel"/lib/modules/*)
tree=$kernel/lib/modules/$version
kept=$root/lib/modules/$version
mkdir -p "$kept"
cp "$tree"/modules.{builtin,builtin.modinfo,order} "$kept/"
for name in "${modules[@]}"; do
  grep -E "/${name//[-_]/[-_]}\.ko:" "$tree/modules.dep" | tr -d : | tr ' ' '\n'
done | sort -u | while read -r file; do
  install -D -m 644 "$tree/$file" "$kept/$file"
done
chroot "$root" depmod "$version"
printf '%s\n' "${modules[@]}" >"$root/etc/boot-modules"

# Reading compiled code is what takes an emulated machine longest: it is compiled here, for the path it will have there.
chroot "$root" python3 -m compileall -q /usr/lib/python3 /usr/lib/python3.11 >/dev/null 2>&1 || true

(cd "$root" && find . -xdev ! -path './proc/*' ! -path './sys/*' ! -path './dev/*' | cpio -o -H newc --quiet | gzip -3) >"$work/initrd.gz"
mv "$work/initrd.gz" "$out/initrd.gz"
