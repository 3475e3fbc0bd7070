#!/bin/bash
# lab: the files that docs/srp-linux-hosts.md gives for a host work: module options, login script, multipath.conf
# lab-fabrics: siw rxe
. "$(dirname "$0")/lib.sh"
start_fabric
target_volume disk0 64
target_host a "$(initiator_id $EXT_A)"
target_map disk0 a 0
start_target

files=$LAB/srp-host
step "module options"
mkdir -p /etc/modprobe.d /etc/srp
cp "$files/ib_srp.conf" /etc/modprobe.d
cp "$files/multipath.conf" /etc
# The example's own names and addresses are replaced by those of this machine.
sed -e "s/^NETDEV=.*/NETDEV=lab0/; s/^TYPE=.*/TYPE=$FABRIC/; s/^DEVICE=.*/DEVICE=$RDEV/" \
  -e "s/^TARGET=.*/TARGET=id_ext=$ID_EXT,ioc_guid=$IOC_GUID,dest=$DEST,initiator_ext=$EXT_A/" "$files/san1" >/etc/srp/san1
# The script makes the RDMA device, unless the target itself works on it.
[ "${PROVIDER:-}" != iwarp ] || rdma link delete "$RDEV"

# login_script [stop]: as systemd would run it, with plain assignments from the file.
login_script() (
  trap - ERR
  while IFS= read -r line; do
    case $line in
      '#'* | '') ;;
      *=*) export "${line%%=*}=${line#*=}" ;;
      *) echo "not an assignment: $line" >&2; exit 1 ;;
    esac
  done </etc/srp/san1
  exec "$files/srp-login" "$@"
)

step "log in by the script"
modprobe -a sd_mod sg    # udev's part
for try in 1 2 3; do
  status=0; login_script || status=$?
  [ $status != 0 ] && [ "$TARGET" = lio ] || break    # see srp_login in host.sh
  sleep 2
done
[ $status = 0 ] || fail "srp-login ended with status $status"
HOST=$(ls /sys/class/scsi_host)
D=$(disk "$HOST" 0)
R=$(rport "$HOST")
for want in reconnect_delay=5 fast_io_fail_tmo=5 dev_loss_tmo=600; do
  [ "$(cat "$R/${want%=*}")" = "${want#*=}" ] || fail "$want was asked for, ${want%=*} is $(cat "$R/${want%=*}")"
done
[ "$(cat "/sys/class/scsi_host/$HOST/cmd_sg_entries")" = 255 ] || fail "cmd_sg_entries is not 255"
pattern "$D" 0 2048
blocks "$D" 0 2048 | cmp -s - /tmp/fill || fail "the disk gives back other data"

step "multipath.conf"
modprobe -a dm_multipath
log multipath multipath -t || fail "multipath does not take its configuration"
! grep -qiE 'multipath.conf.*(invalid|unknown|missing|error)' "$LOGS/multipath" || fail "multipath.conf: $(grep -m1 multipath.conf "$LOGS/multipath")"

step "log out by the script"
login_script stop || fail "srp-login stop ended with status $?"
wait_for 30 gone "/sys/class/scsi_host/$HOST"
passed "the example files log in, set the timeouts, and log out"
