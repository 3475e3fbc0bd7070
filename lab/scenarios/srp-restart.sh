#!/bin/bash
# lab: the target is killed twice under I/O and started again; the host recovers and the data verify
# lab-fabrics: siw rxe
. "$(dirname "$0")/lib.sh"
start_fabric
target_volume disk0 128
target_host a "$(initiator_id $EXT_A)"
target_map disk0 a 0
start_target

# Requests wait while the host reconnects (every second), instead of failing: fast_io_fail_tmo is longer
# than any outage here. A set-up with multipath would have it short.
modprobe scsi_transport_srp
srp_login $EXT_A 2
D=$(disk "$HOST" 0)
R=$(rport "$HOST")
echo 300 >"$R/dev_loss_tmo"
echo 120 >"$R/fast_io_fail_tmo"
echo 1 >"$R/reconnect_delay"
[ "$(cat "$R/state")" = running ] || fail "the remote port is $(cat "$R/state") after the login"

# fio fills the region at random and verifies it, over and over: when the target dies there are always
# requests under way, now writes, now verifying reads.
job() {
  fio --name=under-fire --filename="$D" --direct=1 --ioengine=libaio --rw=randwrite --bs=16k --iodepth=16 --size=32M \
    --verify=crc32c --verify_fatal=1 --verify_state_save=0 "$@" >"$LOGS/fio-under-fire" 2>&1
}
passes() {
  local n=0
  trap - ERR
  until [ -e /tmp/stop ]; do job --randseed=$((++n)) || exit 1; echo $n >/tmp/passes; done
}
passes &
FIO=$!
fio_says() { grep -m3 -iE 'verify|error|err=' "$LOGS/fio-under-fire" | tr '\n' ' '; }

outage() {
  local before after since
  kill -0 $FIO 2>/dev/null || fail "fio ended before outage $1: $(fio_says)"
  wait_for 30 busy
  kill_target
  step "outage $1: the target is gone, with about $N requests under way"
  sleep "$2"
  before=$(ios "$D")
  sleep 1
  [ "$(ios "$D")" = "$before" ] || fail "requests complete although the target is gone"
  since=$(date +%s%N)
  revive_target
  wait_for 60 moved "$before"
  after=$(( ($(date +%s%N) - since) / 1000000 ))
  step "outage $1: I/O goes on $after ms after the start of the new target"
  [ "$(cat "$R/state")" = running ] || fail "I/O goes on, but the remote port is $(cat "$R/state")"
  TIMES="${TIMES:-}${TIMES:+, }$after ms"
}
# Whether requests of the disk, reads and writes, are under way; no fork, to strike right then. Sets N.
busy() { local r w; read -r r w <"/sys/block/${D#/dev/}/inflight"; N=$((r + w)); [ $N -ge 4 ]; }
moved() { [ "$(ios "$D")" -gt "$1" ]; }

sleep 3
outage 1 2
sleep 4
outage 2 5
sleep 2
touch /tmp/stop
wait $FIO || fail "fio: $(fio_says)"
[ "/dev/$(ls /sys/class/scsi_device/"${HOST#host}":0:*:0/device/block)" = "$D" ] || fail "the disk was given up and came back under another name"

step "verify all of it once more"
echo 3 >/proc/sys/vm/drop_caches
passes=$(cat /tmp/passes)
job --randseed="$passes" --verify_only || fail "fio: $(fio_says)"
passed "killed twice under I/O; I/O went on after $TIMES; $passes passes of 32 MiB written and verified"
