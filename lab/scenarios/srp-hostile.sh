#!/bin/bash
# lab: hundreds of bad peers (half-open, garbage, bad logins, bad IUs, too many commands) cost a good host nothing
# lab-fabrics: siw
# lab-targets: weir
. "$(dirname "$0")/lib.sh"
start_fabric
EXT_C=00000000000000c3
target_volume disk0 128
target_volume bait 16
target_host a "$(initiator_id $EXT_A)"
target_host c "$(initiator_id $EXT_C)"
target_map disk0 a 0
target_map bait c 0
start_target
srp_login $EXT_A 2
D=$(disk "$HOST" 0)

rss() { awk '/^VmRSS/ { print int($2 / 1024) }' "/proc/$WEIR_PID/status"; }
files() { ls "/proc/$WEIR_PID/fd" | wc -l; }
open_fire "$D"
files0=$(files) rss0=$(rss) peak=0
step "bad peers for ${SECONDS_OF_ATTACK:=40} s; the target has $files0 files open and $rss0 MiB"
python3 "$(dirname "$0")/hostile.py" "$DEST" $ID_EXT $IOC_GUID "$(initiator_id $EXT_C)" "$SECONDS_OF_ATTACK" >"$LOGS/hostile" 2>&1 &
attack=$!
while kill -0 $attack 2>/dev/null; do
  now=$(rss)
  [ "$now" -le $peak ] || peak=$now
  kill -0 "$WEIR_PID" || fail "the target died: $(tail -n 3 "$LOGS/weir.log" | tr '\n' ' ')"
  still_firing
  sleep 0.5
done
wait $attack || fail "hostile.py: $(tail -n 3 "$LOGS/hostile" | tr '\n' ' ')"
step "$(tail -n 1 "$LOGS/hostile") bad peers; the target has $(files) files open and had up to $peak MiB"
[ $((peak - rss0)) -lt 64 ] || fail "the target grew from $rss0 to $peak MiB"
cease_fire
! dmesg | grep -qE 'SRP abort called|reconnect attempt' || fail "the good host lost commands or its connection"
files_gone() { [ "$(files)" -le $((files0 + 2)) ]; }
wait_for 20 files_gone
# The bait is whole and can be reached by its real owner.
srp_login $EXT_C 1
blocks "$(disk "$HOST" 0)" 0 2048 >/dev/null || fail "the bait cannot be read"
passed "$(tail -n 1 "$LOGS/hostile") bad peers; a good host verified $PASSES passes of 32 MiB meanwhile; memory $rss0 to $peak MiB"
