#!/bin/bash
# lab: libiscsi's tests of SCSI commands, reservations and multipath, over two SRP paths to one disk
# lab-fabrics: siw
# lab-seconds: 1500
. "$(dirname "$0")/lib.sh"
start_fabric
target_volume disk 128
target_host a "$(initiator_id $EXT_A)"
target_host b "$(initiator_id $EXT_B)"
target_map disk a 0
target_map disk b 0
start_target
srp_login $EXT_A 1; A=$(disk_sg "$HOST" 0)
srp_login $EXT_B 1; B=$(disk_sg "$HOST" 0)
# Commands go by SG_IO, past the kernel's own retries.
step "iscsi-test-cu over $A and $B"
iscsi-test-cu --dataloss --test=ALL "$A" "$B" >"$LOGS/libiscsi" 2>&1 || true
# What fails, as suite.test, sorted. Each line of a result names the test; `FAILED` follows those that did.
awk '/^Suite: /{ s = $2 } /^ *Test: .*FAILED/{ sub(/\.\.\.FAILED.*/, ""); print s "." $2 }' "$LOGS/libiscsi" | sort >"$LOGS/libiscsi-failed"
read -r RAN PASSED FAILED <<<"$(awk '$1 == "tests" { print $3, $4, $5 }' "$LOGS/libiscsi")"
[ "${RAN:-0}" -gt 0 ] || fail "no test ran: $(tail -n 3 "$LOGS/libiscsi" | tr '\n' ' ')"
if [ "$TARGET" = weir ]; then
  new=$(comm -13 <(grep -v '^#' "$LAB/scenarios/libiscsi.known" | sort) "$LOGS/libiscsi-failed" | xargs)
  [ -z "$new" ] || fail "these tests did not fail before: $new"
fi
passed "$PASSED of $RAN tests passed, $FAILED failed as known"
