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

# Its state is in a file system on a RAM disk: it survives the program, not the guest. The target port is in the
# configuration file; pools, volumes, hosts and mappings are made by command, so that a restart has to
# find them again by itself.
#
#   POOL      what the pool is made of: dir (default: thin volumes), file, stripe (two files), ram, null
#   PROVIDER  the target's fabric: iwarp (default with siw) or verbs (default with rxe)
#   PORT_B    a second SRP target port at this port of $IP, with the identifier extension $ID_EXT_B (default: none)
#   BRP_PORT  a BRP target port at this port of $IP, too (default: none), by BRP_PROVIDER (default: iwarp)
#   CRC       require: with iwarp, ask for MPA's CRC (default: peer, if the host asks; siw does not)
DATA=/tmp/weir-data
weir() { log weir-commands "$WEIR" --data-dir $DATA "$@" || fail "weir $*: $(tail -n 3 "$LOGS/weir-commands" | tr '\n' ' ')"; }

start_weir() {
  local row devices
  [ -x "$WEIR" ] || fail "no Weir binary at $WEIR"
  case $FABRIC in siw) PROVIDER=${PROVIDER:-iwarp} ;; *) PROVIDER=${PROVIDER:-verbs} ;; esac
  ID_EXT=00000000000000e1 IOC_GUID=00000000000000e2 DEST=$IP:$PORT
  # ext4 on a RAM disk: a file system that takes direct I/O in blocks of 512 bytes, as a real one does.
  modprobe brd rd_nr=1 rd_size=$((1200 * 1024))
  modprobe ext4
  mkfs.ext4 -q /dev/ram0
  mkdir -p $DATA
  mount /dev/ram0 $DATA
  cat >/tmp/weir.toml <<TOML
data_dir = "$DATA"
buffer_memory = "${BUFFERS:-128M}"
[[target]]
name = "srp0"
listen = ["$DEST"]
transport = "$PROVIDER"
id_ext = "$ID_EXT"
ioc_guid = "$IOC_GUID"
crc = "${CRC:-peer}"
TOML
  [ -z "${PORT_B:-}" ] || cat >>/tmp/weir.toml <<TOML
[[target]]
name = "srp1"
listen = ["$IP:$PORT_B"]
transport = "$PROVIDER"
id_ext = "$ID_EXT_B"
ioc_guid = "$IOC_GUID"
crc = "${CRC:-peer}"
TOML
  [ -z "${BRP_PORT:-}" ] || cat >>/tmp/weir.toml <<TOML
[[target]]
name = "brp0"
protocol = "brp"
listen = ["$IP:$BRP_PORT"]
transport = "${BRP_PROVIDER:-iwarp}"
TOML
  cp /tmp/weir.toml "$LOGS"
  run_weir
  case ${POOL:-dir} in
    dir) mkdir $DATA/thin; devices="--device dir:$DATA/thin" ;;
    file) devices="--device file:$DATA/disk:1G" ;;
    stripe) devices="--device file:$DATA/disk0:512M --device file:$DATA/disk1:512M" ;;
    ram | null) devices="--device $POOL:1G" ;;
    *) fail "POOL is $POOL" ;;
  esac
  # shellcheck disable=SC2086
  weir pool create lab $devices
  # shellcheck disable=SC2086
  {
    for row in "${VOLUMES[@]}"; do set -- $row; weir volume create "$1" --pool lab --size "${2}M"; done
    for row in "${HOSTS[@]}"; do set -- $row; weir host create "$1" --port "${2:0:16}:${2:16}"; done
    for row in "${MAPS[@]}"; do set -- $row; weir map create "$2" "$1" --lun "$3"; done
  }
  weir status
}

run_weir() {
  rm -f $DATA/weir.sock
  "$WEIR" serve --config /tmp/weir.toml >>"$LOGS/weir.log" 2>&1 &
  WEIR_PID=$!
  wait_for 60 weir_listens
}
weir_listens() {
  kill -0 "$WEIR_PID" 2>/dev/null || fail "weir ended: $(tail -n 5 "$LOGS/weir.log" | tr '\n' ' ')"
  # Commands wait for the end of the start; ports listen before.
  [ -S $DATA/weir.sock ] || return 1
  case $PROVIDER in
    iwarp) listening $PORT ;;
    # Not the kernel's target, which may listen as well.
    verbs) rdma resource show cm_id | grep -q 'state LISTEN.* comm weir' ;;
  esac
}

kill_weir() { kill -9 "$WEIR_PID"; wait "$WEIR_PID" 2>/dev/null || true; }
revive_weir() { run_weir; }

# finish_weir: an orderly stop, in which Weir must end by itself, with status 0: it counts its pools then.
finish_weir() {
  local pid=${WEIR_PID:-} status=0
  [ -n "$pid" ] || return 0
  WEIR_PID=
  kill -TERM "$pid" 2>/dev/null || true
  (sleep 20; kill -9 "$pid") 2>/dev/null &
  wait "$pid" || status=$?
  kill $! 2>/dev/null || true
  [ $status = 0 ] || { FINISH="weir ended with status $status: $(tail -n 3 "$LOGS/weir.log" | tr '\n' ' ')"; return 1; }
}

# ---- the kernel's own target -----------------------------------------------------------------------
#
#   STORE     fileio (default), or rd_mcp: memory, faster, but without UNMAP

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
    store=$core/${STORE:-fileio}_$((n++))/$1
    mkdir -p "$store"
    if [ "${STORE:-fileio}" = fileio ]; then
      truncate -s "${2}M" "/tmp/lio/$1"
      echo "fd_dev_name=/tmp/lio/$1,fd_dev_size=$(($2 * 1048576)),fd_buffered_io=1" >"$store/control"
    else
      echo "rd_pages=$(($2 * 256))" >"$store/control"
    fi
    echo 1 >"$store/enable"
    printf '%08x' $((n * 0x1111111)) >"$store/wwn/vpd_unit_serial"
    [ "${STORE:-fileio}" != fileio ] || { echo 1 >"$store/attrib/emulate_tpu"; echo 1 >"$store/attrib/emulate_tpws"; }
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
finish_lio() { FINISH=; }
