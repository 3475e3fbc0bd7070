# What the scenarios share; they run in the guest, as root. shellcheck shell=bash
#
# A scenario sources this file, starts a target with target.sh, attaches with host.sh, judges with
# checks.sh, and ends with `passed TEXT`. Whatever fails on the way ends it through `fail`: every
# scenario prints exactly one line that starts with RESULT, and its exit status says the same.
#
#   TARGET   weir (default), or lio: the kernel's own ib_srpt, which proves the scenario, not Weir
#   FABRIC   siw (default) or rxe: the host's RDMA device
#   LOGS     folder for what should outlive the guest
LAB=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$LAB/examples/lib.sh"   # fail, wait_for, netdev, rdma_dev; set -eu and a trap on errors
set -o pipefail
TARGET=${TARGET:-weir} FABRIC=${FABRIC:-siw} LOGS=${LOGS:-/tmp/logs}
PORT=5555
mkdir -p "$LOGS"

# step TEXT: what is being done, with the seconds since the guest was started.
step() { local up; read -r up _ </proc/uptime; echo "[$up] $*" >&2; }

# log NAME COMMAND...: runs COMMAND with its output kept in $LOGS/NAME.
log() { local name=$1; shift; { echo "+ $*"; "$@"; } >>"$LOGS/$name" 2>&1; }

passed() {
  finish_target || fail "$FINISH"
  let_go
  dmesg >"$LOGS/dmesg"
  # ib_srpt itself warns now and then when its channels are cut; a target of ours must not make the host warn.
  [ "$TARGET" = lio ] || ! grep -qE 'WARNING: |BUG: |blocked for more than' "$LOGS/dmesg" || fail "the kernel complains, see dmesg in the logs"
  ! grep -qE 'panicked at' "$LOGS/weir.log" 2>/dev/null || fail "weir panicked: $(grep -m1 -A1 'panicked at' "$LOGS/weir.log" | tr '\n' ' ')"
  trap - ERR
  echo "RESULT $NAME ok: target=$TARGET fabric=$FABRIC; $*"
  exit 0
}

# fail TEXT: replaces the one of the examples, to keep what a post-mortem needs.
fail() {
  trap - ERR
  set +e
  keep_state
  let_go
  finish_target
  echo "RESULT $NAME FAIL: target=$TARGET fabric=$FABRIC: $*"
  exit 1
}

# let_go: ends the host's connections, so that nothing waits for a target that will not answer.
let_go() {
  local d
  for d in /sys/class/srp_remote_ports/*/delete; do [ ! -e "$d" ] || (echo 1 >"$d") & done
  for _ in {1..50}; do ls /sys/class/srp_remote_ports/* >/dev/null 2>&1 || break; sleep 0.2; done
}

keep_state() {
  { echo "== processes"; ps -ef; echo "== sockets"; ss -tanp
    echo "== rdma"; rdma link; rdma resource
    echo "== rports"; grep -H . /sys/class/srp_remote_ports/*/* 2>/dev/null
    echo "== disks"; cat /proc/partitions; echo "== memory"; free -m; } >"$LOGS/state" 2>&1
  dmesg >"$LOGS/dmesg" 2>&1
}

# ends_with STATUS COMMAND...: COMMAND must end with that status. A unit attention (status 6 of the
# sg3-utils) is news for the host, not the answer: asks again.
ends_with() {
  local want=$1 got=6 try; shift
  for try in 1 2 3; do
    got=0; log commands "$@" || got=$?
    [ "$got" = 6 ] && [ "$want" != 6 ] || break
  done
  [ "$got" = "$want" ] || fail "status $got instead of $want after $try tries: $*; $(tail -n 4 "$LOGS/commands" | tr '\n' ' ')"
}

# Statuses of the sg3-utils.
OK=0 BAD_OPCODE=9 MISCOMPARE=14 BAD_LBA=22 CONFLICT=24

for f in target host checks fire; do . "$LAB/scenarios/$f.sh"; done
