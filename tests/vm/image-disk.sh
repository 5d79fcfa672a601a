#!/bin/bash
# image-disk.sh KERNEL INITRD OUT.raw [KERNEL ARGS...]: a whole disk with the system of INITRD, for UEFI: a partition table and one partition
# with loader, kernel and initramfs.
set -euo pipefail

kernel=${1:?usage: image-disk.sh KERNEL INITRD OUT.raw [KERNEL ARGS...]}
initrd=${2:?usage: image-disk.sh KERNEL INITRD OUT.raw [KERNEL ARGS...]}
out=${3:?usage: image-disk.sh KERNEL INITRD OUT.raw [KERNEL ARGS...]}
shift 3

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/grub.cfg" <<G
serial --unit=0 --speed=115200
terminal_output serial
search --file --set=root /vmlinuz
linux /vmlinuz console=ttyS0,115200 panic=5 $*
initrd /initrd.gz
boot
G
modules="part_gpt fat linux serial search normal"
grub-mkstandalone -O x86_64-efi -o "$work/loader.efi" --modules="$modules" --install-modules="$modules terminal echo boot" \
  --locales= --fonts= --themes= "boot/grub/grub.cfg=$work/grub.cfg" 2>/dev/null

mib=$((($(stat -Lc %s "$kernel") + $(stat -Lc %s "$initrd") + $(stat -c %s "$work/loader.efi")) / 1048576 + 8))
truncate -s "${mib}M" "$work/esp"
mkfs.vfat -n ESP "$work/esp" >/dev/null
mmd -i "$work/esp" ::/EFI ::/EFI/BOOT
mcopy -i "$work/esp" "$work/loader.efi" ::/EFI/BOOT/BOOTX64.EFI
mcopy -i "$work/esp" "$kernel" ::/vmlinuz
mcopy -i "$work/esp" "$initrd" ::/initrd.gz

rm -f "$out"
truncate -s "$((mib + 2))M" "$out"
printf 'label: gpt\nstart=1MiB, size=%dMiB, type=U, name=ESP\n' "$mib" | sfdisk -q "$out"
dd if="$work/esp" of="$out" bs=1M seek=1 conv=notrunc status=none
