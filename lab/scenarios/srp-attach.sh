# A host attaches over SRP and does everything a host does. Sourced by srp-siw.sh and srp-rxe.sh, with
# FABRIC set. shellcheck shell=bash
. "$(dirname "$0")/lib.sh"
start_fabric
target_volume disk0 512
target_volume disk1 64
target_host a "$(initiator_id $EXT_A)"
target_host b "$(initiator_id $EXT_B)"
target_map disk0 a 0
target_map disk1 a 1
target_map disk0 b 0
start_target

declare -A FS=([1]=ext4 [2]=xfs)
for channels in 1 2; do
  srp_login $EXT_A $channels
  a=$HOST
  wait_for 30 has_node "/sys/class/scsi_device/${a#host}:0:" 1 block
  [ "$(luns "$a")" = "0 1" ] || fail "the host found LUNs $(luns "$a") instead of 0 1"
  d0=$(disk "$a" 0) d1=$(disk "$a" 1)
  [ "$(blockdev --getsize64 "$d0") $(blockdev --getsize64 "$d1")" = "$((512 << 20)) $((64 << 20))" ] || fail "wrong sizes"
  step "$channels channel(s): LUN 0 is $d0, LUN 1 is $d1"
  check_io "$d0" $channels
  check_fs "$d0" "${FS[$channels]}"
  if [ $channels = 1 ]; then
    check_inquiry "$d0"
    check_thin "$d1"
  else
    srp_login $EXT_B 1
    b=$HOST
    db=$(disk "$b" 0)
    [ "$(identity "$d0")" = "$(identity "$db")" ] || fail "the two paths name the disk differently: $(identity "$d0"), $(identity "$db")"
    [ "$(identity "$d0")" != "$(identity "$d1")" ] || fail "two disks have one name: $(identity "$d0")"
    check_pr "$d0" "$db"
    srp_logout "$b"
  fi
  srp_logout "$a"
done
passed "1 and 2 channels; fio verified; ext4 and xfs with $FILES files; VPD pages $VPD_PAGES; UNMAP, WRITE SAME, COMPARE AND WRITE; persistent reservations"
