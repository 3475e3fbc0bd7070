# What is asked of an attached disk. Sourced by lib.sh. shellcheck shell=bash

# fio_ok NAME DISK OPTIONS...: a fio job on the disk that must end without an error.
fio_ok() {
  local name=$1 disk=$2; shift 2
  step "fio $name: $*"
  fio --name="$name" --filename="$disk" --direct=1 --ioengine=libaio --group_reporting "$@" \
    >"$LOGS/fio-$name" 2>&1 || fail "fio $name: $(grep -m3 -iE 'verify|error|err=' "$LOGS/fio-$name" | tr '\n' ' ')"
}
VERIFY="--verify=crc32c --verify_fatal=1 --verify_state_save=0 --do_verify=1"

# check_io DISK [JOBS]: writes and verifies with every kind of request size; JOBS at a time.
check_io() {
  local jobs=${2:-1}
  # shellcheck disable=SC2086
  {
    fio_ok small "$1" --rw=randwrite --bsrange=512-16k --iodepth=16 --size=8M --numjobs="$jobs" --offset_increment=8M $VERIFY
    fio_ok mixed "$1" --rw=randrw --bsrange=4k-256k --iodepth=8 --size=32M --offset=32M --numjobs="$jobs" --offset_increment=32M $VERIFY
    fio_ok large "$1" --rw=write --bs=1M --iodepth=4 --size=48M --offset=128M --numjobs=1 $VERIFY
  }
}

# make_tree DIR: a file tree to copy: many small files, some large ones, an empty one, a link.
make_tree() {
  [ ! -e "$1" ] || return 0
  mkdir -p "$1"
  cp -r /usr/lib/python3.11/{asyncio,email,json,http,xml,unittest} "$1"
  head -c 20M /dev/urandom >"$1/random"
  head -c 3333333 /dev/urandom >"$1/odd size, and a name with blanks"
  : >"$1/empty"
  ln -s random "$1/link"
  (cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum) >"$1.sums"
}

# check_fs DISK ext4|xfs: makes a file system, copies the tree, and finds it whole after a remount.
check_fs() {
  local src=/tmp/tree mnt=/tmp/mnt
  step "file system $2: make, copy, unmount, mount, compare"
  make_tree $src
  mkdir -p $mnt
  modprobe "$2"
  case $2 in
    ext4) log mkfs mkfs.ext4 -F "$1" ;;
    xfs) log mkfs mkfs.xfs -f "$1" ;;
  esac
  mount -t "$2" "$1" $mnt
  cp -a $src/. $mnt
  # Part of it goes away again and is discarded: space that was freed must not be someone's data.
  cp -a $mnt/random $mnt/random2
  sync -f $mnt/random2
  rm $mnt/random2
  fstrim $mnt 2>>"$LOGS/fstrim" || step "no fstrim on this disk"
  umount $mnt
  echo 3 >/proc/sys/vm/drop_caches
  mount -t "$2" "$1" $mnt
  (cd $mnt && sha256sum --quiet -c $src.sums) || fail "$2: the copy differs"
  FILES=$(wc -l <$src.sums)
  umount $mnt
  case $2 in
    ext4) log mkfs e2fsck -fn "$1" ;;
    xfs) log mkfs xfs_repair -n "$1" ;;
  esac || fail "$2: the file system is damaged, see mkfs in the logs"
}

# check_inquiry DISK: INQUIRY, all VPD pages that page 00 lists, capacity, mode pages, opcodes.
check_inquiry() {
  local p pages got want op
  step "inquiry, VPD pages, capacity, mode pages, opcodes"
  ends_with $OK sg_inq "$1"
  pages=$(sg_vpd --page=0 --raw "$1" | od -An -v -tx1 -w1 | tr -d ' ' | tail -n +5 | xargs)
  for p in 00 80 83 b0 b1 b2; do [[ " $pages " = *" $p "* ]] || fail "VPD page $p is not listed: $pages"; done
  for p in $pages; do
    ends_with $OK sg_inq --vpd --page="0x$p" --hex "$1"
    log vpd sg_vpd --page="0x$p" "$1" || log vpd sg_inq --vpd --page="0x$p" --hex "$1" || fail "VPD page $p"
    sg_vpd --page="0x$p" --raw "$1" >/tmp/vpd
    read -r -a got <<<"$(od -An -v -tu1 -N4 /tmp/vpd)"
    [ "${got[1]}" = $((16#$p)) ] || fail "VPD page $p answers with page ${got[1]}"
    want=$((4 + got[2] * 256 + got[3]))
    [ "$(stat -c %s /tmp/vpd)" = $want ] || fail "VPD page $p is not as long as it says, $want"
  done
  VPD_PAGES=$pages
  ends_with $OK sg_readcap "$1"
  ends_with $OK sg_readcap --16 "$1"
  ends_with $OK sg_luns "$1"
  ends_with $OK sg_turs "$1"
  ends_with $OK sg_requests "$1"
  ends_with $OK sg_modes -a "$1"
  ends_with $OK sg_opcodes "$1"
  ends_with $OK sg_sync "$1"
  ends_with $OK sg_verify --lba=0 --count=8 "$1"
  sg_opcodes "$1" >"$LOGS/opcodes" 2>&1
  # TEST UNIT READY, INQUIRY, MODE SENSE, READ and WRITE (10, 16), SYNCHRONIZE CACHE, REPORT LUNS, PERSISTENT RESERVE IN
  for op in 00 12 1a 28 2a 88 8a 35 a0 5e; do
    grep -qE "^ *$op( |$)" "$LOGS/opcodes" || fail "REPORT SUPPORTED OPERATION CODES does not list ${op}h"
  done
  # An opcode nobody has, and a read past the end: both must be refused, and the disk go on.
  ends_with $BAD_OPCODE sg_raw "$1" ff 0 0 0 0 0
  ends_with $BAD_LBA sg_raw --request=512 "$1" 88 0 7f ff ff ff 0 0 0 0 0 0 0 1 0 0
  ends_with $OK sg_turs "$1"
}

# blocks DISK LBA COUNT: prints their content, read past the page cache.
blocks() {
  dd if="$1" bs=64k iflag=direct,skip_bytes,count_bytes skip=$(($2 * 512)) count=$(($3 * 512)) status=none
}
# zeros DISK LBA BLOCKS: whether the blocks read as zeros.
zeros() {
  blocks "$1" "$2" "$3" | cmp -s -n $(($3 * 512)) - /dev/zero
}
# pattern DISK LBA BLOCKS: fills them with data that are not zero anywhere.
pattern() {
  head -c $(($3 * 512)) /dev/zero | tr '\0' '\245' >/tmp/fill
  dd if=/tmp/fill of="$1" bs=64k oflag=direct,seek_bytes seek=$(($2 * 512)) conv=notrunc status=none
}

# check_thin DISK: UNMAP, WRITE SAME, COMPARE AND WRITE.
check_thin() {
  step "unmap, write same, compare and write"
  pattern "$1" 4096 4096
  ends_with $OK sg_unmap --force --lba=4096 --num=2048 "$1"
  zeros "$1" 4096 2048 || fail "unmapped blocks do not read as zeros"
  ! zeros "$1" 6144 2048 || fail "UNMAP went beyond its range"
  blocks "$1" 6144 2048 | cmp -s -n $((2048 * 512)) - /tmp/fill || fail "UNMAP harmed its neighbour"

  # The host's own way to the same: its driver chooses the command from the VPD pages.
  ends_with $OK blkdiscard --offset $((6144 * 512)) --length $((1024 * 512)) "$1"
  zeros "$1" 6144 1024 || fail "discarded blocks do not read as zeros"
  ! zeros "$1" 7168 1024 || fail "the discard went beyond its range"

  local line; line=$(printf '%0511d' 7)
  echo "$line" >/tmp/block
  ends_with $OK sg_write_same --16 --in=/tmp/block --lba=4096 --num=1000 "$1"
  blocks "$1" 4096 1000 >/tmp/same
  cmp -s -n 512000 /tmp/same <(yes "$line") || fail "WRITE SAME wrote other data"
  zeros "$1" 5096 1000 || fail "WRITE SAME went beyond its range"
  ends_with $OK sg_write_same --10 --in=/tmp/block --lba=8000 --num=8 "$1"
  ends_with $OK sg_write_same --unmap --16 --lba=4096 --num=1000 "$1"
  zeros "$1" 4096 1000 || fail "WRITE SAME with UNMAP left data"

  pattern "$1" 4096 1
  head -c 512 /dev/urandom >/tmp/new
  cat /tmp/block /tmp/new >/tmp/caw      # compares with what is not there
  ends_with $MISCOMPARE sg_compare_and_write --quiet --in=/tmp/caw --lba=4096 --num=1 "$1"
  blocks "$1" 4096 1 | cmp -s -n 512 - /tmp/fill || fail "COMPARE AND WRITE wrote in spite of a miscompare"
  head -c 512 /tmp/fill | cat - /tmp/new >/tmp/caw
  ends_with $OK sg_compare_and_write --in=/tmp/caw --lba=4096 --num=1 "$1"
  blocks "$1" 4096 1 | cmp -s - /tmp/new || fail "COMPARE AND WRITE did not write"
}

# One block read or written by way of SCSI pass-through, so that the kernel neither caches nor retries.
pr_read() { ends_with "$1" sg_raw --request=512 "$2" 28 0 0 0 0 40 0 0 1 0; }
pr_write() { ends_with "$1" sg_raw --send=512 --infile=/tmp/fill "$2" 2a 0 0 0 0 40 0 0 1 0; }
pr_out() { local want=$1 disk=$2; shift 2; ends_with "$want" sg_persist --out "$@" "$disk"; }
pr_keys() { sg_persist --in --no-inquiry --read-keys "$1" | grep -oE '^ +0x[0-9a-f]+' | tr -d ' ' | sort | xargs; }
pr_holder() { sg_persist --in --no-inquiry --read-reservation "$1" 2>&1; }

# check_pr DISK-A DISK-B: persistent reservations of one disk that two initiator ports see.
check_pr() {
  local a=$1 b=$2
  step "persistent reservations between $a and $b"
  pattern "$a" 64 1
  ends_with $OK sg_persist --in --report-capabilities "$a"
  [ -z "$(pr_keys "$a")" ] || fail "the disk starts with registered keys: $(pr_keys "$a")"
  pr_out $OK "$a" --register --param-sark=aaaa
  pr_out $OK "$b" --register --param-sark=bbbb
  [ "$(pr_keys "$a")" = "0xaaaa 0xbbbb" ] || fail "registered keys as seen by A: $(pr_keys "$a")"
  [ "$(pr_keys "$b")" = "0xaaaa 0xbbbb" ] || fail "registered keys as seen by B: $(pr_keys "$b")"
  ends_with $OK sg_persist --in --read-full-status "$a"
  pr_out $CONFLICT "$b" --reserve --param-rk=dead --prout-type=1      # not its key

  pr_out $OK "$a" --reserve --param-rk=aaaa --prout-type=1            # write exclusive
  grep -qi 'aaaa' <<<"$(pr_holder "$b")" || fail "B does not see A's reservation: $(pr_holder "$b")"
  pr_write $OK "$a"; pr_read $OK "$b"; pr_write $CONFLICT "$b"
  pr_out $CONFLICT "$b" --reserve --param-rk=bbbb --prout-type=1
  pr_out $OK "$a" --release --param-rk=aaaa --prout-type=1
  pr_write $OK "$b"

  pr_out $OK "$a" --reserve --param-rk=aaaa --prout-type=3            # exclusive access
  pr_read $CONFLICT "$b"; pr_write $CONFLICT "$b"; ends_with $OK sg_turs "$b"; ends_with $OK sg_inq "$b"
  pr_out $OK "$a" --release --param-rk=aaaa --prout-type=3

  pr_out $OK "$a" --reserve --param-rk=aaaa --prout-type=6            # exclusive access, registrants only
  pr_read $OK "$b"; pr_write $OK "$b"
  pr_out $OK "$b" --register --param-rk=bbbb --param-sark=0           # B is no registrant any more
  pr_read $CONFLICT "$b"; pr_write $CONFLICT "$b"
  pr_out $OK "$b" --register --param-sark=bbbb
  pr_read $OK "$b"
  pr_out $OK "$b" --preempt --param-rk=bbbb --param-sark=aaaa --prout-type=6
  [ "$(pr_keys "$b")" = 0xbbbb ] || fail "keys after the preemption: $(pr_keys "$b")"
  pr_read $CONFLICT "$a"; pr_write $CONFLICT "$a"; pr_write $OK "$b"

  pr_out $OK "$a" --register --param-sark=a2a2
  pr_out $OK "$a" --clear --param-rk=a2a2
  [ -z "$(pr_keys "$a")" ] || fail "keys after CLEAR: $(pr_keys "$a")"
  pr_write $OK "$a"; pr_write $OK "$b"
}

# identity DISK: the logical unit's own designators (VPD page 83), the same on every path to it.
identity() { sg_vpd --page=di_lu --quiet "$1" | xargs; }
