#!/bin/bash
# lab: TCP connections of single channels are cut under I/O, ten times; the host logs in again and the data verify
# lab-fabrics: siw
. "$(dirname "$0")/lib.sh"
start_fabric
target_volume disk0 128
target_host a "$(initiator_id $EXT_A)"
target_map disk0 a 0
start_target
srp_login $EXT_A 2
D=$(disk "$HOST" 0)
wait_for_target "$HOST"

# The target's ends of the channels' connections, with a process to end.
channels() { ss -Htn state established "sport = :$PORT" | awk '{ print $4 }' | sort; }
[ "$(channels | wc -l)" = 2 ] || fail "there are $(channels | wc -l) connections for two channels"
cut() {
  local before victim
  before=$(ios "$D")
  victim=$(channels | sed -n "$(( $1 % 2 + 1 ))p")
  ss -K state established "sport = :$PORT" dst "$victim" >/dev/null
  ! channels | grep -qF "$victim" || fail "the kernel did not cut $victim"
  wait_for 60 new_channels "$victim"
  wait_for 60 moved "$before"
  still_firing
}
new_channels() { [ "$(channels | wc -l)" = 2 ] && ! channels | grep -qF "$1"; }

open_fire "$D"
for i in {1..10}; do
  wait_for 30 busy
  cut "$i"
  step "cut $i: both channels are back"
done
cease_fire
[ "$(disk "$HOST" 0)" = "$D" ] || fail "the disk was given up and came back under another name"
passed "ten connections cut under I/O; $PASSES passes of 32 MiB written and verified"
