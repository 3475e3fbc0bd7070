# $1: the weir program, $2: the directory that everything is in, $3: bytes of memory for devices, or 0; the rest: more arguments of the
# target. Ends with 1 when something could not be taken away.
WEIR=$1 DIR=$2 MEMORY=$3
shift 3
export WEIR_RUN_DIR="$DIR/run" WEIR_DATA_DIR="$DIR/data"
if [ "$MEMORY" != 0 ]; then
  mkdir "$DIR/devices"
  mount -t tmpfs -o "size=$MEMORY" weir-site "$DIR/devices"
  # Devices are opened past the page cache, which tmpfs knows of since Linux 6.6: before that they are files on the disk.
  dd if=/dev/zero of="$DIR/devices/probe" bs=4096 count=1 oflag=direct status=none || umount "$DIR/devices"
  rm -f "$DIR/devices/probe"
fi
"$WEIR" serve --config "$DIR/weir.toml" "$@" </dev/null >"$DIR/target.log" 2>&1 &
target=$!
# Until the scenario closes its end, or dies.
cat >/dev/null
for pid in "$DIR"/mnt-*/pg/postmaster.pid; do
  [ -e "$pid" ] || continue
  # Database and load end at once; what they leave is not wanted.
  kill -QUIT "$(head -n 1 "$pid")" && sleep 1
done
# Whoever is still at work on a mount of ours: a program that the scenario had started when it was killed.
for process in /proc/[0-9]*; do
  case $(readlink "$process/cwd" "$process"/fd/* 2>/dev/null) in
    *"$DIR"/mnt-*) kill -9 "${process#/proc/}" ;;
  esac
done
for at in "$DIR"/mnt-*; do
  mountpoint -q "$at" || continue
  for loop in $(losetup --noheadings --output NAME,BACK-FILE | awk -v at="$at/" 'index($2, at) == 1 { print $1 }'); do
    losetup --detach "$loop"
  done
  timeout 30 umount "$at" || { sleep 2; timeout 30 umount "$at"; } || umount -l "$at"
done
for run in "$DIR"/run/*; do
  [ -e "$run" ] || continue
  timeout 60 "$WEIR" detach "$(basename "$run")" || timeout 60 "$WEIR" detach "$(basename "$run")" --force
done
kill "$target" 2>/dev/null && { sleep 10 && kill -9 "$target"; } 2>/dev/null &
wait "$target" 2>/dev/null
kill $! 2>/dev/null
! mountpoint -q "$DIR/devices" || umount "$DIR/devices"
for at in "$DIR"/mnt-* "$DIR/devices" "$DIR"/run/*; do
  if mountpoint -q "$at" || { [ -e "$at" ] && [ "${at%/run/*}" != "$at" ]; }; then
    echo "$at is still there"
    exit 1
  fi
done
rm -rf "$DIR"
