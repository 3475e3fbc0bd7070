# The host: logins of ib_srp, and the disks they bring. Sourced by lib.sh. shellcheck shell=bash

# The initiator extensions of the scenarios' two initiator ports.
EXT_A=00000000000000a1 EXT_B=00000000000000b2

# initiator_id EXT: the initiator port identifier of a login with that extension: the extension, then
# the second half of the port's first GID. 32 hexadecimal digits.
initiator_id() {
  echo "$1$(cut -d: -f5- "/sys/class/infiniband/$RDEV/ports/1/gids/0" | tr -d :)"
}

# srp_login EXT CHANNELS [MORE-OPTIONS]: logs in to the target that was started; all channels must come
# up. Sets HOST, hostN.
srp_login() {
  local line before try got
  modprobe -a ib_srp sd_mod sg
  line="id_ext=$ID_EXT,ioc_guid=$IOC_GUID,dest=$DEST,initiator_ext=$1,ch_count=$2${3:+,$3}"
  before=$(ls /sys/class/scsi_host)
  step "add_target $line"
  for try in 1 2 3; do
    HOST=
    if add_target "$line"; then
      HOST=$(comm -13 <(echo "$before") <(ls /sys/class/scsi_host))
      [ -n "$HOST" ] || fail "the login brought no SCSI host"
      got=$(cat "/sys/class/scsi_host/$HOST/ch_count")
      [ "$got" != "$2" ] || return 0
    fi
    # On a busy machine a channel to ib_srpt over siw is reset now and then. That is not for us to judge;
    # from Weir every channel must come up at once.
    [ "$TARGET" = lio ] || break
    [ -z "$HOST" ] || srp_logout "$HOST"
    sleep 2
  done
  [ -n "$HOST" ] || fail "login refused: $line"
  fail "the host got $got channels instead of $2"
}
add_target() { (echo "$1" >"/sys/class/infiniband_srp/srp-$RDEV-1/add_target") 2>>"$LOGS/logins"; }

# refused EXT: whether the target refuses a login with this extension.
refused() { ! add_target "id_ext=$ID_EXT,ioc_guid=$IOC_GUID,dest=$DEST,initiator_ext=$1,ch_count=1"; }

# srp_logout HOST
srp_logout() {
  echo 1 >"$(rport "$1")/delete"
  wait_for 30 gone "/sys/class/scsi_host/$1"
}
gone() { [ ! -e "$1" ]; }
rport() { echo "/sys/class/srp_remote_ports/port-${1#host}:1"; }

# wait_for_target HOST: has requests wait while the host logs in again (every second), instead of failing:
# fast_io_fail_tmo is longer than any outage here. A set-up with multipath would have it short.
wait_for_target() {
  local dir; dir=$(rport "$1")
  echo 600 >"$dir/dev_loss_tmo"
  echo 300 >"$dir/fast_io_fail_tmo"
  echo 1 >"$dir/reconnect_delay"
}

# luns HOST: the LUNs the host has found, one line.
luns() {
  local d
  for d in /sys/class/scsi_device/"${1#host}":*; do [ -e "$d" ] && echo "${d##*:}"; done | sort -n | xargs
}

# disk HOST LUN: the disk's device name. disk_sg: that of its generic device.
disk() {
  local dir="/sys/class/scsi_device/${1#host}:0:"
  wait_for 30 has_node "$dir" "$2" block
  echo "/dev/$(ls "$dir"*":$2/device/block")"
}
has_node() { ls "$1"*":$2/device/$3" >/dev/null 2>&1; }
disk_sg() {
  local dir="/sys/class/scsi_device/${1#host}:0:"
  wait_for 30 has_node "$dir" "$2" scsi_generic
  echo "/dev/$(ls "$dir"*":$2/device/scsi_generic")"
}

# ios DISK: how many requests the disk has completed.
ios() { awk '{ print $1 + $5 }' "/sys/block/${1#/dev/}/stat"; }
