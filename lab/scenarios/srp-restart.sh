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

running() { [ "$(cat "$R/state")" = running ] || fail "I/O goes on, but the remote port is $(cat "$R/state")"; }
open_fire "$D"
outage 2
running
sleep 4
outage 5
running
sleep 2
cease_fire
[ "$(disk "$HOST" 0)" = "$D" ] || fail "the disk was given up and came back under another name"
passed "killed twice under I/O; I/O went on after $TIMES; $PASSES passes of 32 MiB written and verified"
