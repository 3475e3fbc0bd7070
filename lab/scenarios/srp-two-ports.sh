#!/bin/bash
# lab: dm-multipath over two target ports: a path is cut under I/O; a host is fenced by another one through the other port, and comes back
# lab-fabrics: siw rxe
# lab-targets: weir
. "$(dirname "$0")/lib.sh"
PORT_B=5556 ID_EXT_B=00000000000000e3
start_fabric
target_volume disk 96
target_host a "$(initiator_id $EXT_A)"
target_host b "$(initiator_id $EXT_B)"
target_map disk a 0
target_map disk b 0
start_target
DEST_A=$DEST ID_EXT_A=$ID_EXT DEST_B=$IP:$PORT_B
modprobe -a dm_mod dm_multipath dm_round_robin

# port a|b: the target port that the next login goes to.
port() { if [ "$1" = a ]; then ID_EXT=$ID_EXT_A DEST=$DEST_A; else ID_EXT=$ID_EXT_B DEST=$DEST_B; fi; }
# path EXT PORT: logs in, and sets HOST, and DISK to what LUN 0 is there.
path() { port "$2"; srp_login "$1" 1; DISK=$(disk "$HOST" 0); }
path $EXT_A a; A1=$DISK HOST_A1=$HOST
path $EXT_A b; A2=$DISK HOST_A2=$HOST
path $EXT_B a; B1=$DISK
path $EXT_B b; B2=$DISK
for d in "$A2" "$B1" "$B2"; do
  [ "$(identity "$d")" = "$(identity "$A1")" ] || fail "$d and $A1 are not one disk: $(identity "$d"), $(identity "$A1")"
done
for h in "$HOST_A1" "$HOST_A2"; do  # a path that is gone fails at once: there is another one
  echo 600 >"$(rport "$h")/dev_loss_tmo"; echo 0 >"$(rport "$h")/fast_io_fail_tmo"; echo 1 >"$(rport "$h")/reconnect_delay"
done

# The disk of each host, over its two paths in turns. No daemon watches them: the scenario says itself when a path is back.
SECTORS=$(blockdev --getsz "$A1")
both() { log dmsetup dmsetup create "$1" --table "0 $SECTORS multipath 1 queue_if_no_path 0 1 1 round-robin 0 2 1 $2 16 $3 16"; }
both host-a "$A1" "$A2"
both host-b "$B1" "$B2"
node() { echo "/dev/dm-$(dmsetup info -c --noheadings -o minor "$1" | xargs)"; }   # no udev here makes names of them
A=$(node host-a) B=$(node host-b)
failed() { grep -qE " $(cat "/sys/block/${1#/dev/}/dev") F " <<<"$(dmsetup status host-a)"; }
back() { dmsetup message host-a 0 "reinstate_path $(cat "/sys/block/${1#/dev/}/dev")"; }

answers() { sg_turs "$1" >/dev/null 2>&1; }
fire_is_out() { ! kill -0 $FIRE_PID 2>/dev/null; }
# cut DISK PORT: siw's connections are TCP's and can be cut; with rxe the host's disk is taken off line.
cut() {
  case $FABRIC in
    siw) ss -K state established "sport = :$2" >/dev/null ;;
    *) echo offline >"/sys/block/${1#/dev/}/device/state" ;;
  esac
}
# struck DISK PORT: whether a cut met requests, so that the path counts as failed. The host may log in again before there are any.
struck() { cut "$1" "$2"; for _ in {1..10}; do ! failed "$1" || return 0; sleep 0.2; done; return 1; }
mend() { [ "$FABRIC" = siw ] || echo running >"/sys/block/${1#/dev/}/device/state"; }

step "I/O goes on over the other port while one is cut, in turns"
open_fire "$A"
for n in 1 2; do
  for d in "$A1:$PORT" "$A2:$PORT_B"; do
    wait_for 30 busy
    wait_for 60 struck "${d%:*}" "${d#*:}"
    before=$(ios "$A"); wait_for 60 moved "$before"
    still_firing
    mend "${d%:*}"
    wait_for 60 answers "${d%:*}"
    back "${d%:*}"
  done
  step "round $n: both paths were away once"
done
cease_fire

step "each host registers on both its paths; A reserves by the first port"
for d in "$A1" "$A2" "$B1" "$B2"; do wait_for 60 answers "$d"; done
for d in "$A1" "$A2"; do pr_out $OK "$d" --register-ignore --param-sark=0xa; done
for d in "$B1" "$B2"; do pr_out $OK "$d" --register-ignore --param-sark=0xb; done
[ "$(pr_keys "$B2")" = "0xa 0xa 0xb 0xb" ] || fail "registered are $(pr_keys "$B2")"
pr_out $OK "$A1" --reserve --param-rk=0xa --prout-type=5   # write exclusive, registrants only
open_fire "$A"

step "B takes the disk from A, by the second port, while A writes"
wait_for 30 busy
pr_out $OK "$B2" --preempt-abort --param-rk=0xb --param-sark=0xa --prout-type=5
# From here nothing of A's may land.
dd if=/dev/urandom of=/tmp/mine bs=1M count=32 status=none
dd if=/tmp/mine of="$B" bs=1M oflag=direct status=none
wait_for 150 fire_is_out   # what was aborted is tried again when the host's time for it is up
grep -qiE 'err=|error' "$LOGS/fio-under-fire" || fail "fio ended without an error although its host was fenced"
head -c 512 /dev/zero | tr '\0' '\245' >/tmp/fill
for d in "$A1" "$A2"; do pr_write $CONFLICT "$d"; done
sleep 5
blocks "$B" 0 65536 | cmp -s - /tmp/mine || fail "something of the fenced host landed over what the other one wrote"
[ "$(pr_keys "$B1")" = "0xb 0xb" ] || fail "registered are $(pr_keys "$B1")"

step "A comes back by registering again, and both write"
for d in "$A1" "$A2"; do pr_out $OK "$d" --register-ignore --param-sark=0xa; back "$d"; done
open_fire "$A"
# shellcheck disable=SC2086
fio_ok beside "$B" --rw=randwrite --bs=8k --iodepth=8 --size=16M --offset=48M $VERIFY
cease_fire
for d in host-a host-b; do log dmsetup dmsetup remove "$d"; done
passed "four cuts of single paths, one fencing through the other port; $PASSES passes of 32 MiB verified"
