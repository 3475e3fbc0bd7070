#!/bin/bash
# lab: BRP by way of the verbs library, over the kernel's software adapters: I/O of all sizes and ways to merge, a disk by ublk, kills of the target
# lab-fabrics: siw rxe
# lab-targets: weir
# lab-seconds: 900
. "$(dirname "$0")/lib.sh"
modprobe -a ublk_drv || fail "this kernel has no ublk_drv"
ip link set lo up
start_fabric
PROVIDER=verbs BRP_PROVIDER=verbs BRP_PORT=5556
target_volume disk0 128
target_host a "$(initiator_id $EXT_A)"
target_map disk0 a 0
start_target
weir host create others --allow-any
weir map create others disk0 --lun 0

# Everything that is read was written by it, and compared.
BENCH=0
bench() {
  log bench "$WEIR" bench --initiator brp --fabric verbs --target "$IP:$BRP_PORT" --volume disk0 --verify crc32c "$@" ||
    fail "bench $*: $(tail -n 4 "$LOGS/bench" | tr '\n' ' ')"
  BENCH=$((BENCH + 1))
}
for variant in brp-2 brp-3t auto; do
  for bs in 4k 64k; do
    step "$variant, $bs"
    bench --rw randwrite --bs $bs --size 32M --iodepth 32 --channels 2 --variant $variant
  done
done
step "sectors, and a request that needs several"
bench --rw randwrite --bs 512 --size 2M --iodepth 8 --channels 1
bench --rw write --bs 1m --size 32M --iodepth 4 --channels 1

step "attach"
weir attach disk0 --protocol brp --fabric verbs --target "$IP:$BRP_PORT" --method ublk --queues 2
D=$(readlink -f /dev/weir/disk0)
[[ "$D" = /dev/ublkb* ]] || fail "the disk is $D"
mkdir -p /mnt/disk
log commands mkfs.ext4 -q "$D"
mount -o discard "$D" /mnt/disk
cp -r /usr/bin /mnt/disk/ 2>/dev/null || true
(cd /mnt/disk && find . -type f -exec sha256sum {} +) >/tmp/sums
umount /mnt/disk
echo 3 >/proc/sys/vm/drop_caches
mount "$D" /mnt/disk
(cd /mnt/disk && log commands sha256sum -c --quiet /tmp/sums) || fail "files differ: $(tail -n 4 "$LOGS/commands" | tr '\n' ' ')"
umount /mnt/disk
log commands fsck.ext4 -n -f "$D" || fail "fsck"
FILES=$(wc -l </tmp/sums)

step "two deaths of the target"
open_fire "$D"
outage 2
sleep 3
outage 4
sleep 2
cease_fire
step "detach"
weir detach disk0
passed "$BENCH loads and $PASSES passes of 32 MiB written and verified; I/O went on after $TIMES; $FILES files compared"
