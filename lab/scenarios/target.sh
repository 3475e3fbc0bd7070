# The target under test. Sourced by lib.sh. shellcheck shell=bash
#
# A scenario declares with target_volume, target_host and target_map, then calls start_target, which
# sets ID_EXT, IOC_GUID and DEST for the login. kill_target and revive_target are for restarts.
WEIR=${WEIR:-$LAB/weir}     # the program under test
VOLUMES=() HOSTS=() MAPS=()

# target_volume NAME MIB
target_volume() { VOLUMES+=("$1 $2"); }
# target_host NAME INITIATOR-PORT-IDENTIFIER
target_host() { HOSTS+=("$1 $2"); }
# target_map VOLUME HOST LUN
target_map() { MAPS+=("$1 $2 $3"); }

# start_fabric: the RDMA device of the host, on a network device of its own. Sets RDEV, IP.
start_fabric() { rdma_dev "$FABRIC"; }

start_target() { step "starting target $TARGET"; "start_$TARGET"; }
kill_target() { "kill_$TARGET"; }
revive_target() { "revive_$TARGET"; }
finish_target() { "finish_$TARGET"; }

# ---- Weir ------------------------------------------------------------------------------------------

weir() { "$WEIR" --data-dir /tmp/weir-data "$@"; }

start_weir() {
  local provider=iwarp row
  [ -x "$WEIR" ] || fail "no Weir binary at $WEIR"
  [ "$FABRIC" = siw ] || provider=verbs
  mkdir -p /tmp/weir-data
  cat >/tmp/weir.toml <<TOML
data_dir = "/tmp/weir-data"
[[target]]
listen = "$IP:$PORT"
fabric = "${PROVIDER:-$provider}"
TOML
  run_weir
  weir pool create lab --size 4G
  for row in "${VOLUMES[@]}"; do set -- $row; weir volume create "$1" --pool lab --size "${2}M"; done
  for row in "${HOSTS[@]}"; do set -- $row; weir host create "$1" --initiator "$2"; done
  for row in "${MAPS[@]}"; do set -- $row; weir map create --volume "$1" --host "$2" --lun "$3"; done
  ID_EXT=0000000000000001 IOC_GUID=0000000000000001
  DEST=$IP:$PORT
}

run_weir() {
  "$WEIR" serve --config /tmp/weir.toml >>"$LOGS/weir.log" 2>&1 &
  WEIR_PID=$!
  wait_for 60 weir_ready
}
weir_ready() {
  kill -0 "$WEIR_PID" 2>/dev/null || fail "weir ended: $(tail -n 5 "$LOGS/weir.log" | tr '\n' ' ')"
  weir status >/dev/null 2>&1
}

kill_weir() { kill -9 "$WEIR_PID"; wait "$WEIR_PID" 2>/dev/null || true; }
revive_weir() { run_weir; }

# finish_weir: an orderly stop, so that its last census is in the log.
finish_weir() {
  [ -z "${WEIR_PID:-}" ] || ! kill -0 "$WEIR_PID" 2>/dev/null || {
    kill -TERM "$WEIR_PID"
    timeout 20 tail --pid="$WEIR_PID" -f /dev/null || { kill -9 "$WEIR_PID"; echo "killed: no end after SIGTERM" >>"$LOGS/weir.log"; }
  }
}

# ---- the kernel's own target -----------------------------------------------------------------------

start_lio() {
  local row gid tpg core=$CFG/target/core n=0 store
  local -A lun acl
  mkdir -p /etc/target/pr /var/target/pr /tmp/lio   # where the target wants to keep its state
  modprobe -a target_core_mod target_core_file ib_srpt
  # Named by its whole GID, the port knows initiators by their port identifiers.
  gid=0x$(tr -d : <"/sys/class/infiniband/$RDEV/ports/1/gids/0")
  tpg=$CFG/target/srpt/$gid/$gid
  mkdir -p "$tpg"
  for row in "${VOLUMES[@]}"; do
    set -- $row
    store=$core/fileio_$((n++))/$1
    mkdir -p "$store"
    truncate -s "${2}M" "/tmp/lio/$1"
    echo "fd_dev_name=/tmp/lio/$1,fd_dev_size=$(($2 * 1048576)),fd_buffered_io=1" >"$store/control"
    echo 1 >"$store/enable"
    printf '%08x' $((n * 0x1111111)) >"$store/wwn/vpd_unit_serial"
    echo 1 >"$store/attrib/emulate_tpu"
    echo 1 >"$store/attrib/emulate_tpws"
    mkdir "$tpg/lun/lun_$n"
    ln -s "$store" "$tpg/lun/lun_$n/$1"
    lun[$1]=$tpg/lun/lun_$n
  done
  for row in "${HOSTS[@]}"; do set -- $row; acl[$1]=$tpg/acls/0x$2; mkdir "${acl[$1]}"; done
  for row in "${MAPS[@]}"; do
    set -- $row
    mkdir "${acl[$2]}/lun_$3"
    ln -s "${lun[$1]}" "${acl[$2]}/lun_$3/disk"
  done
  echo $PORT >$CFG/target/srpt/discovery_auth/rdma_cm_port
  LIO_TPG=$tpg
  echo 1 >"$tpg/enable"
  ID_EXT=$(sed 's/^0x//' /sys/module/ib_srpt/parameters/srpt_service_guid) IOC_GUID=$ID_EXT
  DEST=$IP:$PORT
  if [ "$FABRIC" = siw ]; then
    # ib_srpt listens on the IPv6 wildcard address; there siw takes no IPv4 logins (lab/README.md).
    ip addr add fd77::1/64 dev lab0 nodad
    DEST=[fd77::1]:$PORT
  fi
}
# It cannot be killed; disabling it cuts every channel and refuses logins.
kill_lio() { echo 0 >"$LIO_TPG/enable"; }
revive_lio() { echo 1 >"$LIO_TPG/enable"; }
finish_lio() { :; }
