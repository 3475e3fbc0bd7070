#!/bin/bash
# lab: S1's table 2 as disks: 4 KiB direct reads and writes one at a time by dd, BRP through ublk against the kernel's ib_srp, on one volume
# lab-fabrics: siw
# lab-targets: weir
# lab-seconds: 900
#
#   COUNT  I/Os of a measurement (default 1000)   ROUNDS  measurements of each (default 7; the median counts)
# The page about it is written to the logs, as brp-table2-lab.md.
. "$(dirname "$0")/lib.sh"
COUNT=${COUNT:-1000} ROUNDS=${ROUNDS:-7}
modprobe -a ublk_drv || fail "this kernel has no ublk_drv"
ip link set lo up
start_fabric
POOL=ram BRP_PORT=5556
target_volume disk0 $MIB
target_host a "$(initiator_id $EXT_A)"
target_map disk0 a 0
start_target
weir host create others --allow-any
weir map create others disk0 --lun 0

# NAME of a way -> its disk. All three are the same volume; the last one tells the protocol's part from that of ublk.
WAYS="srp brp srp-ublk"
declare -A DISKS TEXT=([srp]="SRP, ib_srp" [brp]="BRP, ublk" [srp-ublk]="SRP, ublk")
srp_login $EXT_A 1
DISKS[srp]=$(disk "$HOST" 0)
weir attach disk0 --name brp --protocol brp --method ublk --queues 1 --target "$IP:$BRP_PORT"
weir attach disk0 --name srp-ublk --protocol srp --method ublk --queues 1 --target "$IP:$PORT"
for w in brp srp-ublk; do
  DISKS[$w]=$(readlink -f /dev/weir/$w)
  [[ "${DISKS[$w]}" = /dev/ublkb* ]] || fail "the disk of $w is ${DISKS[$w]}"
done
scheduler() { sed -E 's/.*\[(.*)\].*/\1/' "/sys/block/${1#/dev/}/queue/scheduler"; }
for w in $WAYS; do
  [ "$(blockdev --getsize64 "${DISKS[$w]}")" = $((MIB << 20)) ] || fail "the disk of $w has another size"
  echo none >"/sys/block/${DISKS[$w]#/dev/}/queue/scheduler"
  step "${TEXT[$w]}: ${DISKS[$w]}, scheduler $(scheduler "${DISKS[$w]}")"
done

# It is one volume, and what one way writes the others read.
dd if=/dev/urandom of="${DISKS[srp]}" bs=1M count=$MIB oflag=direct status=none
sum() { dd if="$1" bs=1M iflag=direct status=none | sha256sum; }
want=$(sum "${DISKS[srp]}")
for w in brp srp-ublk; do [ "$(sum "${DISKS[$w]}")" = "$want" ] || fail "$w reads other data than srp"; done

# one DISK read|write: microseconds an I/O. What is written was read there before, so that the data stays what it is.
dd if="${DISKS[srp]}" of=/tmp/part bs=4k count="$COUNT" iflag=direct status=none
one() {
  local said
  case $2 in
    read) said=$(LC_ALL=C dd if="$1" of=/dev/null bs=4k count="$COUNT" iflag=direct 2>&1) ;;
    write) said=$(LC_ALL=C dd if=/tmp/part of="$1" bs=4k count="$COUNT" oflag=direct conv=notrunc 2>&1) ;;
  esac || fail "dd: $said"
  awk -v n="$COUNT" -F', ' '/ copied, / { sub(/ s$/, "", $(NF-1)); printf "%.1f\n", $(NF-1) * 1e6 / n }' <<<"$said"
}
for w in $WAYS; do for rw in read write; do one "${DISKS[$w]}" $rw >/dev/null; done; done   # to warm up
for ((round = 0; round < ROUNDS; round++)); do
  for rw in read write; do
    # Who is first changes from round to round.
    # shellcheck disable=SC2086
    set -- $WAYS $WAYS
    shift $((round % 3))
    for w in "${@:1:3}"; do one "${DISKS[$w]}" $rw >>"/tmp/us-$w-$rw"; done
  done
  step "round $((round + 1)) of $ROUNDS"
done
[ "$(sum "${DISKS[brp]}")" = "$want" ] || fail "the volume has changed"

sorted() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)], v[1], v[NR] }'; }
# times RW WAY: "MEDIAN LEAST MOST" in microseconds. ratios RW WAY: the same of the rounds' quotients to ib_srp.
times() { sorted <"/tmp/us-$2-$1"; }
ratios() { paste "/tmp/us-$2-$1" "/tmp/us-srp-$1" | awk '{ printf "%.3f\n", $1 / $2 }' | sorted; }
machine=$(kernel_said 'Hypervisor detected: KVM' && echo "a virtual machine" || echo "an emulated virtual machine (no KVM)")
page=$LOGS/brp-table2-lab.md summary=
{
  cat <<PAGE
# S1 table 2 in the kernel lab: latency of whole kernel paths

S1 compares disks: by dd, one direct 4 KiB I/O at a time, reads take 43 us with BRP and 63 us with SRP (0.68), writes 54 and 75 us (0.72).
Here SRP is the kernel's own \`ib_srp\` over \`siw\`, BRP is \`weir attach\` through ublk, and both are disks of one host, of the
same volume of the same target. *SRP, ublk* is \`weir attach\` by SRP: beside BRP it shows the protocol alone, beside \`ib_srp\` what a
user-space initiator adds.

| I/O | disk | us (least - most) | against ib_srp (least - most) | S1: BRP / SRP |
| --- | --- | ---: | ---: | ---: |
PAGE
  for rw in read write; do
    for w in $WAYS; do
      read -r us low high <<<"$(times $rw $w)"
      read -r q qlow qhigh <<<"$(ratios $rw $w)"
      theirs=
      [ $w != brp ] || { [ $rw = read ] && theirs=0.68 || theirs=0.72; }
      against=
      [ $w = srp ] || against="$q ($qlow - $qhigh)"
      echo "| $rw | ${TEXT[$w]} | $us ($low - $high) | $against | $theirs |"
    done
  done
  cat <<PAGE

## How it was measured

In $machine with $(nproc) processors and Linux $(uname -r); target, initiators and dd share them, and an emulated processor is some ten times
slower at computing, so that programs in user space and checksums without the processor's instruction weigh more than on a
real one: the quotients are those of this machine. Medians of $ROUNDS rounds of $COUNT I/Os each, the disks in turns; quotients are taken round
by round. The volume has $MIB MiB in the target's memory, written before. One channel and one hardware queue each, no I/O scheduler.
Both protocols run over the target's iWARP on TCP; the host's side of iWARP is \`siw\` in the kernel for \`ib_srp\`, and Weir's own for ublk. BRP
has its checksums on, from the initiator on. Afterwards the volume read the same as before by all disks. Load average of the machine around
it before the run: ${HOST_LOAD:-not known}; of the guest after it: $(cut -d' ' -f1 /proc/loadavg). $("$WEIR" --version), $(date -u '+%F %H:%M') UTC.

\`\`\`sh
lab/run brp-table2 --env ROUNDS=$ROUNDS --env COUNT=$COUNT
\`\`\`
PAGE
} >"$page"
for rw in read write; do
  read -r srp _ <<<"$(times $rw srp)"; read -r brp _ <<<"$(times $rw brp)"; read -r ublk _ <<<"$(times $rw srp-ublk)"
  read -r q _ <<<"$(ratios $rw brp)"
  summary="$summary${summary:+; }4 KiB $rw: BRP $brp us, ib_srp $srp us ($q), SRP by ublk $ublk us"
done
cat "$page" >&2
weir detach brp
weir detach srp-ublk
passed "median of $ROUNDS rounds of $COUNT: $summary"
