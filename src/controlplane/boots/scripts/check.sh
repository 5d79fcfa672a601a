# shellcheck shell=bash
# Acceptance checks of the machine it runs on: what its own operating system sees. One line of JSON for each goes to $BOOT_CHECKS; what
# the image has no tool for is not measured. EXPECTED_GPUS is set by a line before this text.

[ "${BOOT_PURPOSE:-}" = check ] || { echo "this is not a boot for checks" >&2; exit 2; }

say() {
  printf '{"name":"%s","result":"%s","detail":"%s"}\n' "$1" "$2" "$(printf '%s' "$3" | tr -d '\042\134' | tr -c '[:print:]' ' ')" >>"$BOOT_CHECKS"
}

count_gpus() {
  if command -v nvidia-smi >/dev/null; then
    nvidia-smi -L | grep -c '^GPU ' || true
  else
    find /dev -maxdepth 1 -name 'nvidia[0-9]*' | wc -l
  fi
}

gpus=$(count_gpus)
if [ "$gpus" -eq "${EXPECTED_GPUS:-0}" ]; then
  say gpu_count passed "$gpus"
else
  say gpu_count failed "$gpus of ${EXPECTED_GPUS:-0}"
fi

down=$(ip -o link show up 2>/dev/null | grep -c 'state DOWN' || true)
say links "$([ "$down" -eq 0 ] && echo passed || echo failed)" "$down ports without a link"

if command -v dcgmi >/dev/null; then
  if said=$(dcgmi diag -r 2 2>&1); then say gpu_diagnosis passed ""; else say gpu_diagnosis failed "$(printf '%s' "$said" | tail -c 500)"; fi
else
  say gpu_diagnosis not_measured "no dcgmi in the image"
fi
if command -v gpu_burn >/dev/null; then
  if said=$(gpu_burn 120 2>&1); then say gpu_burn passed ""; else say gpu_burn failed "$(printf '%s' "$said" | tail -c 500)"; fi
else
  say gpu_burn not_measured "no gpu_burn in the image"
fi
say fabric_bandwidth not_measured "pairs are measured by jobs"
