#!/bin/bash
# lab: the target stops answering for 40 s; the host aborts, resets, logs in again; nothing is lost or answered twice
# lab-fabrics: siw rxe
# lab-targets: weir
. "$(dirname "$0")/lib.sh"
start_fabric
target_volume disk0 128
target_host a "$(initiator_id $EXT_A)"
target_map disk0 a 0
start_target
srp_login $EXT_A 2
D=$(disk "$HOST" 0)
wait_for_target "$HOST"
# Commands time out after 3 s: the host aborts them (waits 5 s), resets the unit (5 s), then logs in again.
echo 3 >"/sys/block/${D#/dev/}/device/timeout"

stall() {
  local before
  still_firing
  wait_for 30 busy
  kill -STOP "$WEIR_PID"
  step "stall $1: the target stands still for $2 s, with about $N requests under way"
  sleep "$2"
  before=$(ios "$D")
  kill -CONT "$WEIR_PID"
  wait_for 120 moved "$before"
  step "stall $1: I/O goes on"
}
open_fire "$D"
stall 1 5      # long enough for aborts, which are answered late
sleep 3
stall 2 40     # long enough for every step
sleep 3
cease_fire
dmesg | grep -q 'SRP abort called' || fail "the host did not abort anything: the stalls proved nothing"
dmesg | grep -q 'SRP reset_device called' || fail "the host did not reset the unit: the stalls proved nothing"
[ "$(disk "$HOST" 0)" = "$D" ] || fail "the disk was given up and came back under another name"
passed "stalls of 5 and 40 s: aborts, unit reset, new login; $PASSES passes of 32 MiB written and verified"
