#!/usr/bin/env bash
# The AVX-512 kernels where no processor has them: the tests of the op, with this machine's Python,
# torch and built library, inside a Skylake-X that Bochs emulates.
#
#   tests/avx512/run.sh                     the tests below: hours, of which 7 minutes until the first
#   tests/avx512/run.sh -k awkward FILE     whatever pytest is to run instead
#
# Bochs must be installed (bochs and bochsbios of Debian 12). What else it takes, a kernel and a boot
# loader, is fetched by name with apt-get download and unpacked in build/avx512, installed nowhere.
set -euo pipefail
tree=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-$tree/.venv/bin/python}
export PYTHONPATH=$tree
work=$tree/build/avx512
[ $# -gt 0 ] || set -- tests/kernels/test_filter_grads.py tests/kernels/test_centralize.py \
    tests/kernels/test_spectrum.py -k "not (torch] or torch- or 70000 or millions or long_layers or \
sample_orders or test_ratios or every_instruction_set)"

skip() {
    echo "skipped: $1"
    exit 0
}
command -v bochs-bin > /dev/null || skip "bochs is not installed"
[ -f /usr/share/bochs/BIOS-bochs-latest ] || skip "bochsbios is not installed"
command -v apt-get > /dev/null || skip "there is no apt-get to fetch a kernel with"
(cd "$tree" && "$python" -c "from specgrad_kernels.backends import cpp; assert not cpp.why_not()") ||
    skip "the native library is not built"

# ---- Packages ----------------------------------------------------------------------------------

packages=$work/packages
if [ ! -f "$packages/complete" ]; then
    mkdir -p "$packages"
    kernel=$(apt-cache depends linux-image-amd64 | awk '$1 == "Depends:" {print $2; exit}')
    (cd "$packages" && apt-get --quiet=2 download "$kernel" busybox-static isolinux syslinux-common \
        xorriso libisoburn1 libisofs6 libburn4 libjte2) || skip "no packages to boot from"
    for package in "$packages"/*.deb; do dpkg -x "$package" "$packages"; done
    touch "$packages/complete"
fi
busybox=$packages/bin/busybox

# ---- The first program, which mounts the CD-ROM and runs the tests on it -----------------------

modules="scsi_common scsi_mod libata ata_piix cdrom sr_mod isofs"
rm -rf "$work/first" "$work/cd"
mkdir -p "$work/first"/{bin,dev,lib,proc,system} "$work/cd"/{bin,dev,isolinux,proc,sys,tmp}
cp "$busybox" "$work/first/bin"
for module in $modules; do
    find "$packages/lib/modules" -name "$module.ko" -exec cp {} "$work/first/lib" \;
done
cat > "$work/first/init" << END
#!/bin/busybox sh
alias b=/bin/busybox
b mount -t proc proc /proc
b mount -t devtmpfs dev /dev
exec < /dev/ttyS0 > /dev/ttyS0 2>&1
for module in $modules; do b insmod /lib/\$module.ko; done
until b mount -t iso9660 /dev/sr0 /system; do b sleep 1; done
b mount -t proc proc /system/proc
b mount -t sysfs sys /system/sys
b mount --move /dev /system/dev
b mount -t tmpfs tmp /system/tmp
b chroot /system /bin/busybox sh /start
echo "emulator ends with \$?"
b sleep 1  # until the serial line has sent it
b poweroff -f
END
chmod +x "$work/first/init"
(cd "$work/first" && find . | "$busybox" cpio -o -H newc 2> /dev/null) | gzip > "$work/cd/isolinux/first"

# ---- The CD-ROM: a boot loader, and this machine's own Python, torch and tree -------------------

cp "$packages"/usr/lib/ISOLINUX/isolinux.bin "$packages"/usr/lib/syslinux/modules/bios/ldlinux.c32 \
    "$work/cd/isolinux"
cp "$packages"/boot/vmlinuz-* "$work/cd/isolinux/vmlinuz"
cp "$busybox" "$work/cd/bin"
# what Bochs 2.7 says of the compact form of saved registers is wrong (bits 321 and 323), and Linux
# would do without AVX altogether
cat > "$work/cd/isolinux/isolinux.cfg" << END
default linux
label linux
  kernel /isolinux/vmlinuz
  append initrd=/isolinux/first console=ttyS0 quiet clearcpuid=321,323 mitigations=off tsc=reliable
END
cat > "$work/cd/start" << END
export HOME=/tmp TMPDIR=/tmp PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 SPECGRAD_ISA=avx512
export CI=1 PYTEST_DISABLE_PLUGIN_AUTOLOAD=1  # CI: hypothesis then knows no deadline
export PYTHONPATH=$tree:$("$python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")
cd $tree
exec $("$python" -c "import sys; print(sys._base_executable)") -m pytest -v --tb=short -p no:cacheprovider \\
    $(printf '%q ' "$@")
END
(cd "$tree" && "$python" tests/avx512/contents.py) > "$work/contents"
LD_LIBRARY_PATH=$packages/usr/lib/x86_64-linux-gnu "$packages/usr/bin/xorriso" -as mkisofs -quiet -R -D \
    -b isolinux/isolinux.bin -c isolinux/catalog -no-emul-boot -boot-load-size 4 -boot-info-table \
    -m "*/torch/include" -m "*/torch/bin" -m "*.a" -o "$work/cd.iso" \
    -graft-points -path-list "$work/contents" /="$work/cd" 2> "$work/xorriso.log"

# ---- The machine -------------------------------------------------------------------------------

cat > "$work/bochsrc" << END
cpu: model=corei7_skylake_x, count=1, ips=60000000
megs: 1536
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/bochs/VGABIOS-lgpl-latest
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata0-master: type=cdrom, path=$work/cd.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=$work/serial.txt
display_library: rfb, options="timeout=0"
plugin_ctrl: speaker=0
sound: waveoutdrv=dummy, waveindrv=dummy, midioutdrv=dummy
clock: sync=none, time0=utc
log: $work/bochs.log
END
: > "$work/serial.txt"
tail -f "$work/serial.txt" &
trap 'kill $!' EXIT
# Bochs shows its screen to whoever asks (VNC, no password): in a network of its own, where that may be
alone=()
unshare --net true 2> /dev/null && alone=(unshare --net)
# Debian's Bochs starts in its debugger: c lets the machine run, and the pipe stays open
{ echo c; tail -f /dev/null --pid=$$; } | nice -n 19 ${alone[@]+"${alone[@]}"} bochs-bin -q -f "$work/bochsrc" > "$work/bochs.out" 2>&1 || true
grep -q "^emulator ends with 0" "$work/serial.txt"
