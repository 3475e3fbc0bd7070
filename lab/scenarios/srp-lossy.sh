#!/bin/bash
# lab: packets are delayed, lost, duplicated and reordered, with MPA's CRC on; the data verify
# lab-fabrics: siw
. "$(dirname "$0")/lib.sh"
start_fabric
target_volume disk0 128
target_host a "$(initiator_id $EXT_A)"
target_map disk0 a 0
CRC=require FIRE_BS=64k
start_target
modprobe sch_netem
srp_login $EXT_A 2
D=$(disk "$HOST" 0)
wait_for_target "$HOST"

# What the machine says to itself passes `lo`, but for rxe, which short-cuts it. The MTU makes many packets
# of a message.
ip link set lo mtu 1500
for bad in "delay 1ms 1ms loss 0.3%" "delay 2ms reorder 25% 50% duplicate 1%"; do
  step "netem $bad"
  tc qdisc replace dev lo root netem $bad limit 10000
  open_fire "$D"
  sleep 8
  cease_fire
  tc -s qdisc show dev lo >>"$LOGS/netem"
  sum=$((${sum:-0} + PASSES))
done
tc qdisc del dev lo root
grep -qE 'dropped [1-9]' "$LOGS/netem" || fail "not a packet was lost: this run proved nothing"
[ "$(disk "$HOST" 0)" = "$D" ] || fail "the disk was given up and came back under another name"
passed "loss, delay, reordering and duplication; $sum passes of 32 MiB written and verified"
