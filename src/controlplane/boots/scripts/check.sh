# shellcheck shell=bash
# Acceptance checks and burn-in of the machine it runs on. One line of JSON for each goes to $BOOT_CHECKS, what tools print goes whole into
# $BOOT_OUTPUTS; what the image has no tool for, or the machine no hardware, is not measured. Lines before this text set EXPECTED_GPUS, and
# BURN_IN: `name limit_s amount` for each test. A tool that hangs or ends badly has failed, and the others run all the same.

[ "${BOOT_PURPOSE:-}" = check ] || { echo "this is not a boot for checks" >&2; exit 2; }

SYS=${CHECK_SYS:-/sys/class/infiniband} # another place only where the check itself is tested
HPL=${CHECK_HPL:-/opt/hpl}
LONGEST_BYTES=8000000
PORT=18515

say() {
  printf '{"name":"%s","result":"%s","detail":"%s"}\n' "$1" "$2" "$(printf '%s' "$3" | tr -d '\042\134' | tr -c '[:print:]' ' ')" >>"$BOOT_CHECKS"
}

count_gpus() {
  if command -v nvidia-smi >/dev/null; then
    timeout --kill-after=5 60 nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true
  else
    find /dev -maxdepth 1 -name 'nvidia[0-9]*' | wc -l
  fi
}

# Runs the command for so long; its output is in $BOOT_OUTPUTS unless it was cut. What went wrong is in $why, empty when nothing did.
measure() { # name of the output, limit in seconds, command
  local name=$1 limit_s=$2 code=0 new=$BOOT_OUTPUTS/.$1.new said=$BOOT_OUTPUTS/.$1.err
  shift 2
  why=""
  timeout --kill-after=10 "$limit_s" "$@" >"$new" 2>"$said" </dev/null || code=$?
  case $code in
    0) ;;
    124 | 137) why="not over after $limit_s s" ;;
    126 | 127) why="it cannot be run" ;;
    *) why="exit code $code" ;;
  esac
  if [ -n "$why" ]; then why="$why: $(cat "$said" "$new" | tail -c 400)"; fi
  if [ "$(stat -c %s "$new")" -gt "$LONGEST_BYTES" ]; then
    why="its output is longer than is taken"
  elif [ "$code" -ne 124 ] && [ "$code" -ne 137 ] && [ -s "$new" ]; then
    mv -f "$new" "$BOOT_OUTPUTS/$name"
  elif [ -z "$why" ]; then
    why="it printed nothing"
  fi
  rm -f "$new" "$said"
}

verdict() { # test
  if [ -n "$why" ]; then say "$1" failed "$why"; else say "$1" passed ""; fi
}

# Whether the test can be run; else it is said to be not measured.
has() { # test, tool, whether it needs a GPU
  if ! command -v "$2" >/dev/null; then
    say "$1" not_measured "no $2 in the image"
  elif [ "$3" = gpu ] && [ "$gpus" -eq 0 ]; then
    say "$1" not_measured "no GPU is seen"
  else
    return 0
  fi
  return 1
}

home_of() { dirname "$(readlink -f "$(command -v "$1")")"; }

run_gpu_state() {
  has gpu_state nvidia-smi gpu || return 0
  measure gpu_state "$1" nvidia-smi -q -x
  verdict gpu_state
}

run_gpu_diagnosis() {
  has gpu_diagnosis dcgmi gpu || return 0
  # The engine may run already; if it cannot be started, dcgmi says so.
  if command -v nv-hostengine >/dev/null; then timeout 60 nv-hostengine >/dev/null 2>&1 </dev/null || true; fi
  measure gpu_diagnosis "$1" dcgmi diag -r "$2" -j
  verdict gpu_diagnosis
}

run_gpu_burn() {
  has gpu_burn gpu_burn gpu || return 0
  # It looks for its kernels where it stands.
  measure gpu_burn "$1" env --chdir="$(home_of gpu_burn)" gpu_burn "$2"
  verdict gpu_burn
}

run_gpu_collectives() {
  has gpu_collectives all_reduce_perf gpu || return 0
  measure gpu_collectives "$1" all_reduce_perf -b 8 -e 8G -f 2 -g "$gpus"
  verdict gpu_collectives
}

run_linpack() {
  has linpack xhpl any || return 0
  if [ ! -r "$HPL/HPL.dat" ]; then say linpack not_measured "no HPL.dat in the image"; return 0; fi
  measure linpack "$1" env --chdir="$HPL" xhpl
  verdict linpack
}

# From each port that is up through its own switch or cable and back to itself; the devices share the time.
run_rdma_loopback() {
  local device devices=() server each failed=""
  has rdma_loopback ib_write_bw any || return 0
  for device in "$SYS"/*; do
    if grep -qs ACTIVE "$device"/ports/*/state; then devices+=("${device##*/}"); fi
  done
  if [ "${#devices[@]}" -eq 0 ]; then say rdma_loopback not_measured "no RDMA port is up"; return 0; fi
  each=$(($1 / ${#devices[@]}))
  [ "$each" -ge 1 ] || each=1
  for device in "${devices[@]}"; do
    timeout --kill-after=5 "$each" ib_write_bw -d "$device" -p "$PORT" -F --report_gbits >/dev/null 2>&1 </dev/null &
    server=$!
    # shellcheck disable=SC2016 # the inner shell's own words
    measure "rdma_loopback.$device" "$each" bash -c '
      for _ in 1 2 3 4 5 6 7 8 9 10; do
        if said=$(ib_write_bw -d "$0" -p "$1" -F --report_gbits localhost); then printf "%s\n" "$said"; exit 0; fi
        sleep 1 # until the other end listens
      done
      printf "%s\n" "$said" >&2
      exit 1' "$device" "$PORT"
    kill "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
    if [ -n "$why" ]; then failed="$failed$device: $why; "; fi
  done
  why=$failed
  verdict rdma_loopback
}

gpus=$(count_gpus)
if [ "$gpus" -eq "${EXPECTED_GPUS:-0}" ]; then
  say gpu_count passed "$gpus"
else
  say gpu_count failed "$gpus of ${EXPECTED_GPUS:-0}"
fi

down=$(ip -o link show up 2>/dev/null | grep -c 'state DOWN' || true)
say links "$([ "$down" -eq 0 ] && echo passed || echo failed)" "$down ports without a link"

while read -r -u 3 name limit_s amount; do
  case $name in
    gpu_state | gpu_diagnosis | gpu_burn | gpu_collectives | linpack | rdma_loopback) "run_$name" "$limit_s" "$amount" ;;
    "") ;;
    *) say "$name" not_measured "this script does not know the test" ;;
  esac
done 3<<<"${BURN_IN:-}"
say fabric_bandwidth not_measured "pairs are measured by jobs"
