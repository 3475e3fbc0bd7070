#!/bin/bash
# lab: `weir attach` by ublk, volumes by BRP and by SRP: file system, kills of the target under I/O, discard, detach
# lab-targets: weir
# lab-seconds: 900
. "$(dirname "$0")/lib.sh"
modprobe -a ublk_drv || fail "this kernel has no ublk_drv"
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

no_disk() { [ ! -e "$D" ]; }

# PROTOCOLS: those to be tried.
for PROTOCOL in ${PROTOCOLS:-brp srp}; do
  step "attach by $PROTOCOL"
  weir attach disk0 --protocol $PROTOCOL --method ublk --queues 2
  D=$(readlink -f /dev/weir/disk0)
  [[ "$D" = /dev/ublkb* ]] || fail "the disk is $D"
  [ "$(blockdev --getsize64 "$D")" = $((128 << 20)) ] || fail "the disk has $(blockdev --getsize64 "$D") bytes"
  [ "$(ls "/sys/block/${D#/dev/}/mq" | wc -l)" = 2 ] || fail "the disk has other than 2 queues"
  # File system, files, what a discard leaves.
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
  FILES="${FILES:-}${FILES:+ and }$(wc -l </tmp/sums)"
  log commands blkdiscard "$D"
  log commands blkdiscard --zeroout --offset 1M --length 1M "$D"
  # Two deaths of the target.
  FIRE_DISK=$D
  open_fire "$D"
  outage 2
  sleep 3
  outage 4
  sleep 2
  cease_fire
  step "detach"
  weir detach disk0
  no_disk || fail "$D is still there"
  [ -z "$(ls /run/weir/attach)" ] || fail "something of the attachment is left"
  ALL="${ALL:-}${ALL:+, }$PROTOCOL: $PASSES passes of 32 MiB"
done

step "a process that is killed"
weir attach disk0
D=$(readlink -f /dev/weir/disk0)
kill -9 "$("$WEIR" attach --list | awk '$1 == "disk0" { print $NF }')"
sleep 1
weir detach disk0
no_disk || fail "$D is still there after its process was killed"
passed "$ALL written and verified; I/O went on after $TIMES; $FILES files compared; killed process cleaned up"
