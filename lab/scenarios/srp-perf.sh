#!/bin/bash
# lab: figures of fio for Weir and for the kernel's ib_srpt, both in memory, in turns in one run
# lab-fabrics: siw rxe
# lab-seconds: 900
#
#   RUNTIME  seconds per measurement (default 3)   ROUNDS  measurements per figure (default 3; the median counts)
# With TARGET=lio only ib_srpt is measured.
. "$(dirname "$0")/lib.sh"
start_fabric
POOL=ram STORE=rd_mcp
ROUNDS=${ROUNDS:-3} CHANNELS=${CHANNELS:-1}
target_volume disk0 256
target_host a "$(initiator_id $EXT_A)"
target_map disk0 a 0

declare -A DISKS
attach() {
  "start_$1"
  srp_login $EXT_A "$CHANNELS"
  DISKS[$1]=$(disk "$HOST" 0)
  blockdev --setra 0 "${DISKS[$1]}"
  dd if=/dev/urandom of="${DISKS[$1]}" bs=1M oflag=direct status=none count=256   # so that nothing is a hole
}
attach lio
NAMES=lio
[ "$TARGET" = lio ] || { PORT=5556; attach weir; NAMES="weir lio"; }

median() { sort -n | sed -n "$(((ROUNDS + 1) / 2))p"; }
printf '%-22s' "" >&2
for t in $NAMES; do printf '%28s' "$t" >&2; done
echo >&2
summary=
for test in "randread 4k 1" "randread 4k 16" "randwrite 4k 1" "randwrite 4k 16" "randread 64k 4" "randwrite 64k 4" "read 512k 4"; do
  # shellcheck disable=SC2086
  for ((round = 0; round < ROUNDS; round++)); do
    for t in $NAMES; do
      DISK=${DISKS[$t]}
      echo "$(measure $test)" >>"/tmp/perf-$t-${test// /-}"
    done
  done
  printf '%-22s' "$test" >&2
  line=
  for t in $NAMES; do
    f=/tmp/perf-$t-${test// /-}
    cp "$f" "$LOGS"
    iops=$(cut -d' ' -f1 "$f" | median) us=$(cut -d' ' -f2 "$f" | median) kib=$(cut -d' ' -f3 "$f" | median)
    printf '%10d/s %6d us %4d MiB/s' "$iops" "$us" $((kib / 1024)) >&2
    line="$line${line:+ against }$iops"
  done
  echo >&2
  summary="$summary${summary:+; }$test: $line IOPS"
done
passed "$CHANNELS channel(s), ${NAMES/ / against }, median of $ROUNDS: $summary"
