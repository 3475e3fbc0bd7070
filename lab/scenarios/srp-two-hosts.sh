#!/bin/bash
# lab: two initiator ports: each sees its own LUNs and no others, a shared LUN is one disk, strangers see nothing
# lab-fabrics: siw rxe
. "$(dirname "$0")/lib.sh"
start_fabric
target_volume only-a 32
target_volume only-b 48
target_volume shared 64
target_host a "$(initiator_id $EXT_A)"
target_host b "$(initiator_id $EXT_B)"
target_map only-a a 0
target_map shared a 7
target_map only-b b 0
target_map shared b 3
start_target

srp_login $EXT_A 2; A=$HOST
srp_login $EXT_B 1; B=$HOST
[ "$A" != "$B" ] || fail "one SCSI host for two logins"
wait_for 30 has_node "/sys/class/scsi_device/${A#host}:0:" 7 block
wait_for 30 has_node "/sys/class/scsi_device/${B#host}:0:" 3 block
[ "$(luns "$A")" = "0 7" ] || fail "A sees LUNs $(luns "$A") instead of 0 7"
[ "$(luns "$B")" = "0 3" ] || fail "B sees LUNs $(luns "$B") instead of 0 3"
a0=$(disk "$A" 0) a7=$(disk "$A" 7) b0=$(disk "$B" 0) b3=$(disk "$B" 3)
step "A: LUN 0 $a0, LUN 7 $a7; B: LUN 0 $b0, LUN 3 $b3"
sizes=$(for d in "$a0" "$a7" "$b0" "$b3"; do echo $(($(blockdev --getsize64 "$d") >> 20)); done | xargs)
[ "$sizes" = "32 64 48 64" ] || fail "sizes of the disks are $sizes instead of 32 64 48 64"
[ "$(identity "$a0")" != "$(identity "$b0")" ] || fail "A's LUN 0 and B's LUN 0 are one disk"
[ "$(identity "$a7")" = "$(identity "$b3")" ] || fail "the shared disk has two names: $(identity "$a7"), $(identity "$b3")"

step "what one writes to the shared disk the other reads; the private ones stay apart"
for d in "$a0:1" "$b0:2" "$a7:3"; do
  head -c 1M /dev/zero | tr '\0' "${d#*:}" >/tmp/"${d#*:}"
  dd if=/tmp/"${d#*:}" of="${d%:*}" bs=64k oflag=direct status=none
done
for d in "$a0:1" "$b0:2" "$a7:3" "$b3:3"; do
  blocks "${d%:*}" 0 2048 | cmp -s - /tmp/"${d#*:}" || fail "${d%:*} does not hold what was written to it"
done
# All at once: no channel may serve the other host's disk.
step "fio on all four paths at once"
for d in "$a0:0" "$b0:0" "$a7:0" "$b3:16M"; do
  # shellcheck disable=SC2086
  (fio_ok "${d//[:\/]/-}" "${d%:*}" --rw=randwrite --bs=8k --iodepth=8 --size=8M --offset="${d#*:}" $VERIFY) &
  jobs="${jobs:-} $!"
done
for j in $jobs; do wait "$j" || exit 1; done   # that job has said why

# A LUN that is another host's cannot be reached by asking for it.
echo "0 0 3" >"/sys/class/scsi_host/$A/scan"
echo "0 0 7" >"/sys/class/scsi_host/$B/scan"
sleep 1
[ "$(luns "$A") / $(luns "$B")" = "0 7 / 0 3" ] || fail "after asking for the other's LUNs, A has $(luns "$A"), B has $(luns "$B")"

# The end of one host's connection leaves the other one alone.
srp_logout "$B"
dd if=/tmp/3 of="$a7" bs=64k oflag=direct status=none
blocks "$a7" 0 2048 | cmp -s - /tmp/3 || fail "after B's logout A reads other data"

step "a stranger"
if refused 00000000000000c3; then
  stranger="is refused"
else
  C=$(ls -v /sys/class/scsi_host | tail -n 1)
  sleep 2
  # shellcheck disable=SC2012
  [ -z "$(ls /sys/class/scsi_device/"${C#host}":0:*/device/block 2>/dev/null)" ] || fail "an unknown initiator port sees LUNs $(luns "$C")"
  stranger="sees no disk"
fi
passed "each host sees its own LUNs; the shared LUN is one disk; a stranger $stranger"
