#!/bin/bash
# signed-disc.sh BUILT OUT.iso [KERNEL ARGS...]: a disc that boots under Secure Boot with the keys that machines are sold with: Debian's shim
# (signed by Microsoft), its GRUB and its kernel (signed by Debian), none of them changed. BUILT/image holds kernel and initramfs.
set -euo pipefail

built=${1:?usage: signed-disc.sh BUILT OUT.iso [KERNEL ARGS...]}
out=${2:?usage: signed-disc.sh BUILT OUT.iso [KERNEL ARGS...]}
shift 2

signed=$built/signed
if [ ! -s "$signed/grubx64.efi" ]; then
  mkdir -p "$signed/debs"
  (cd "$signed/debs" && apt-get -o APT::Sandbox::User=root download -q shim-signed grub-efi-amd64-signed >/dev/null)
  for deb in "$signed"/debs/*.deb; do dpkg-deb -x "$deb" "$signed/tree"; done
  cp "$signed/tree/usr/lib/shim/shimx64.efi.signed" "$signed/shimx64.efi"
  cp "$signed/tree/usr/lib/grub/x86_64-efi-signed/gcdx64.efi.signed" "$signed/grubx64.efi"
  rm -rf "$signed/debs" "$signed/tree"
fi

disc=$(mktemp -d)
trap 'rm -rf "$disc"' EXIT
# GRUB's image for discs looks for this file to find the disc it came from.
mkdir -p "$disc/boot/grub" "$disc/.disk"
echo signed >"$disc/.disk/info"
cp "$built/image/vmlinuz" "$built/image/initrd.gz" "$disc/boot/"
cat >"$disc/boot/grub/grub.cfg" <<G
set timeout=0
menuentry signed {
  linux /boot/vmlinuz console=ttyS0,115200 panic=5 $*
  initrd /boot/initrd.gz
}
G
truncate -s 8M "$disc/boot/efi.img"
mkfs.vfat -n ESP "$disc/boot/efi.img" >/dev/null
mmd -i "$disc/boot/efi.img" ::/EFI ::/EFI/BOOT
mcopy -i "$disc/boot/efi.img" "$signed/shimx64.efi" ::/EFI/BOOT/BOOTX64.EFI
mcopy -i "$disc/boot/efi.img" "$signed/grubx64.efi" ::/EFI/BOOT/grubx64.efi
xorriso -as mkisofs -quiet -V SIGNED -r -J -e boot/efi.img -no-emul-boot -o "$out" "$disc" 2>/dev/null
