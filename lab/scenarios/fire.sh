# I/O without a pause while something happens to the target. Sourced by lib.sh. shellcheck shell=bash
#
#   open_fire DISK       fio fills 32 MiB at random and verifies them, over and over, in the background:
#                        there are always requests under way, now writes, now verifying reads
#   still_firing         fails if fio has found wrong data or an error
#   outage SECONDS       the target dies under fire, and comes back after so long; I/O goes on. Adds to TIMES
#   cease_fire           waits for the pass that is on, verifies it once more past all caches; sets PASSES
FIRE=/tmp/fire

fire_job() {
  fio --name=under-fire --filename="$FIRE_DISK" --direct=1 --ioengine=libaio --rw=randwrite --bs="${FIRE_BS:-16k}" --iodepth=16 --size=32M \
    --verify=crc32c --verify_fatal=1 --verify_state_save=0 "$@" >"$LOGS/fio-under-fire" 2>&1
}
fire_passes() {
  local n=0
  trap - ERR
  until [ -e $FIRE/stop ]; do fire_job --randseed=$((++n)) || exit 1; echo $n >$FIRE/passes; done
}
fio_says() { grep -m3 -iE 'verify|error|err=' "$LOGS/fio-under-fire" | tr '\n' ' '; }

open_fire() {
  FIRE_DISK=$1
  rm -rf $FIRE
  mkdir $FIRE
  fire_passes &
  FIRE_PID=$!
  sleep 3
  still_firing
}
still_firing() { kill -0 $FIRE_PID 2>/dev/null || fail "fio ended: $(fio_says)"; }
cease_fire() {
  touch $FIRE/stop
  wait $FIRE_PID || fail "fio: $(fio_says)"
  step "verify once more"
  echo 3 >/proc/sys/vm/drop_caches
  PASSES=$(cat $FIRE/passes)
  fire_job --randseed="$PASSES" --verify_only || fail "fio, verifying once more: $(fio_says)"
}

# busy: whether requests of the disk, reads and writes, are under way; no fork, to strike right then. Sets N.
busy() {
  local r w
  read -r r w <"/sys/block/${FIRE_DISK#/dev/}/inflight"
  N=$((r + w))
  [ $N -ge 4 ]
}
# moved COUNT: whether more requests than that have completed.
moved() { [ "$(ios "$FIRE_DISK")" -gt "$1" ]; }

outage() {
  local before since after
  still_firing
  wait_for 30 busy
  kill_target
  step "the target is gone, with about $N requests under way"
  sleep "$1"
  before=$(ios "$FIRE_DISK")
  sleep 1
  [ "$(ios "$FIRE_DISK")" = "$before" ] || fail "requests complete although the target is gone"
  since=$(date +%s%N)
  revive_target
  wait_for 60 moved "$before"
  after=$(( ($(date +%s%N) - since) / 1000000 ))
  step "I/O goes on $after ms after the start of the new target"
  TIMES="${TIMES:-}${TIMES:+, }$after ms"
}
