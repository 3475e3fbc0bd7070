#!/bin/bash
# lab: the target is killed twice under I/O and started again; the host recovers and the data verify
# lab-fabrics: siw rxe
. "$(dirname "$0")/lib.sh"
start_fabric
target_volume disk0 128
target_host a "$(initiator_id $EXT_A)"
target_map disk0 a 0
start_target
srp_login $EXT_A 2
D=$(disk "$HOST" 0)
wait_for_target "$HOST"
R=$(rport "$HOST")
[ "$(cat "$R/state")" = running ] || fail "the remote port is $(cat "$R/state") after the login"

outage() {
  local before after since
  still_firing
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
open_fire "$D"
outage 1 2
sleep 4
outage 2 5
sleep 2
cease_fire
[ "$(disk "$HOST" 0)" = "$D" ] || fail "the disk was given up and came back under another name"
passed "killed twice under I/O; I/O went on after $TIMES; $PASSES passes of 32 MiB written and verified"
