#!/bin/bash
# lab: `weir attach` by the kernel's nbd driver, a volume by BRP: file system, kills of the target under I/O, discard, growth, detach
# lab-targets: weir
# lab-seconds: 700
. "$(dirname "$0")/lib.sh"
modprobe nbd nbds_max=4 || fail "this kernel has no nbd"
modprobe ext4
modprobe brd rd_nr=1 rd_size=$((1200 * 1024))
mkfs.ext4 -q /dev/ram0
mkdir -p $DATA /mnt/disk
mount /dev/ram0 $DATA
ip link set lo up
PROVIDER=iwarp
cat >/tmp/weir.toml <<TOML
data_dir = "$DATA"
buffer_memory = "64M"
listen = ["127.0.0.1:$PORT"]
[[pool]]
name = "thin"
devices = [{ kind = "dir", path = "thin" }]
[[volume]]
name = "disk0"
pool = "thin"
size = "128M"
[[host]]
name = "anyone"
allow_any = true
[[map]]
host = "anyone"
volume = "disk0"
TOML
run_weir

no_disk() { [ ! -e "/sys/block/${D#/dev/}/pid" ] && [ "$(cat "/sys/block/${D#/dev/}/size")" = 0 ]; }

# Without --method FUSE is taken.
step "attach"
weir attach disk0 --method nbd --protocol brp --queues 2
D=$(readlink -f /dev/weir/disk0)
[[ "$D" = /dev/nbd* ]] || fail "the disk is $D"
[ "$(blockdev --getsize64 "$D")" = $((128 << 20)) ] || fail "the disk has $(blockdev --getsize64 "$D") bytes"
[ "$(ls "/sys/block/${D#/dev/}/mq" | wc -l)" = 2 ] || fail "the disk has other than 2 queues"
[ "$(cat "/sys/block/${D#/dev/}/queue/write_cache")" = "write back" ] || fail "the disk takes no flushes"
log commands mkfs.ext4 -q "$D"
mount -o discard "$D" /mnt/disk
cp -r /usr/bin /mnt/disk/ 2>/dev/null || true
(cd /mnt/disk && find . -type f -exec sha256sum {} +) >/tmp/sums
if "$WEIR" detach disk0 2>"$LOGS/busy"; then fail "a mounted disk was taken away"; fi
grep -q 'is mounted at' "$LOGS/busy" || fail "why it is busy is not said: $(cat "$LOGS/busy")"
umount /mnt/disk
echo 3 >/proc/sys/vm/drop_caches
mount "$D" /mnt/disk
(cd /mnt/disk && log commands sha256sum -c --quiet /tmp/sums) || fail "files differ: $(tail -n 4 "$LOGS/commands" | tr '\n' ' ')"
umount /mnt/disk
log commands fsck.ext4 -n -f "$D" || fail "fsck"
FILES=$(wc -l </tmp/sums)
log commands blkdiscard "$D" || fail "no discard"
log commands blkdiscard --zeroout --offset 1M --length 1M "$D" || fail "no zeroes"

step "two deaths of the target"
FIRE_DISK=$D
open_fire "$D"
outage 2
sleep 3
# Longer than the 30 s after which the driver's requests time out if nobody tells it otherwise.
outage 40
sleep 2
cease_fire

step "the volume grows"
weir volume resize disk0 160M
# A declaration never makes a volume smaller.
sed -i s/128M/160M/ /tmp/weir.toml
grown() { [ "$(blockdev --getsize64 "$D")" = $((160 << 20)) ]; }
wait_for 30 grown
step "detach"
weir detach disk0
no_disk || fail "$D is still there"
[ -z "$(ls /run/weir/attach)" ] || fail "something of the attachment is left"

step "a process that is killed, with requests under way and no target"
weir attach disk0 --method nbd
D=$(readlink -f /dev/weir/disk0)
kill_target
dd if=/dev/zero of="$D" bs=64k count=64 oflag=direct 2>"$LOGS/dd" &
DD=$!
waiting() { read -r r w <"/sys/block/${D#/dev/}/inflight"; [ $((r + w)) -gt 0 ]; }
wait_for 30 waiting
kill -9 "$("$WEIR" attach --list | awk '$1 == "disk0" { print $NF }')"
ended() { ! kill -0 $DD 2>/dev/null; }
wait_for 30 ended || fail "a request waits for a process that is dead"
if wait $DD; then fail "a request went well that nobody served"; fi
revive_target
weir detach disk0
no_disk || fail "$D is still there after its process was killed"
weir attach disk0 --method nbd
weir detach disk0
passed "$PASSES passes of 32 MiB written and verified; I/O went on after $TIMES; $FILES files compared; grown; killed process cleaned up"
