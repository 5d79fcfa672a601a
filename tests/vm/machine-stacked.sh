#!/bin/bash
# machine-stacked.sh KERNEL_TREE WIPE OUT: a small Debian with LVM and mdadm that lives in memory, makes what a tenant might have made of four
# disks, and then runs the script WIPE -> OUT. Its last lines on the console are what the wipe reported and its exit code. Needs root.
set -euo pipefail

kernel=${1:?usage: machine-stacked.sh KERNEL_TREE WIPE OUT}
wipe=${2:?usage: machine-stacked.sh KERNEL_TREE WIPE OUT}
out=${3:?usage: machine-stacked.sh KERNEL_TREE WIPE OUT}
modules=(virtio_pci virtio_blk md_mod raid1 dm_mod)

work=$(mktemp -d -p "$(dirname "$out")")
trap 'rm -rf "$work"' EXIT
root=$work/root
chmod 755 "$work"
TMPDIR=$work mmdebstrap --quiet --variant=apt --include=mount,kmod,lvm2,dmsetup,mdadm,diffutils --aptopt='Apt::Install-Recommends "false"' \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  bookworm "$root"
rm -rf "${root:?}"/var/cache/apt/* "${root:?}"/var/lib/apt/lists/* "${root:?}"/usr/lib/udev/hwdb.* "${root:?}"/usr/share/{perl,i18n} \
  "${root:?}"/usr/lib/x86_64-linux-gnu/{perl,gconv} "${root:?}"/var/lib/dpkg/info

version=$(basename "$kernel"/lib/modules/*)
for name in "${modules[@]}"; do
  grep -E "/${name//[-_]/[-_]}\.ko:" "$kernel/lib/modules/$version/modules.dep" | tr -d : | tr ' ' '\n'
done | sort -u | while read -r file; do
  install -D -m 644 "$kernel/lib/modules/$version/$file" "$root/lib/modules/$version/$file"
done
cp "$kernel/lib/modules/$version"/modules.{builtin,builtin.modinfo,order} "$root/lib/modules/$version/"
chroot "$root" depmod "$version"
install -m 644 "$wipe" "$root/wipe.sh"
cat >"$root/init" <<INIT
#!/bin/bash
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs run /run
ln -sn /proc/self/fd /dev/fd
exec </dev/null >/dev/console 2>&1
modprobe -qa ${modules[*]}
lvm() { command lvm "\$@" --config 'activation { udev_sync=0 udev_rules=0 }'; }
mdadm --create /dev/md0 --run --level=1 --raid-devices=2 --metadata=1.2 --assume-clean /dev/vda /dev/vdb
lvm pvcreate -q /dev/md0 && lvm vgcreate -q tenant /dev/md0
lvm lvcreate -q -Wn -Zn -L 8m -n data tenant
yes "the last tenant's secret" | dd of=/dev/mapper/tenant-data bs=1M count=8 iflag=fullblock oflag=direct status=none
echo "0 8192 linear /dev/mapper/tenant-data 0" | dmsetup create --noudevsync above
mkswap -q /dev/vdc && swapon /dev/vdc
yes "the last tenant's secret" | dd of=/dev/vdd bs=1M count=8 iflag=fullblock oflag=direct status=none
echo "0 8192 linear /dev/vdd 0" | dmsetup create --noudevsync plain
echo "made: \$(cd /sys/block && ls -d md* dm-* | tr '\n' ' ') swap \$(grep -c vdc /proc/swaps) holders \$(cd /sys/block && ls vda/holders vdb/holders vdd/holders | tr '\n' ' ')"
BOOT_PURPOSE=wipe BOOT_CHECKS=/run/checks bash -eET -o pipefail /wipe.sh
code=\$?
sed 's/^/report: /' /run/checks
echo "ended: \$code"
echo o >/proc/sysrq-trigger
while :; do sleep 1; done
INIT
chmod 755 "$root/init"
(cd "$root" && find . -xdev ! -path './proc/*' ! -path './sys/*' ! -path './dev/*' | cpio -o -H newc --quiet | gzip -3) >"$work/initrd.gz"
mv "$work/initrd.gz" "$out"
