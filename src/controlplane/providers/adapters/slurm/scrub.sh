#!/bin/bash
# Wipes what a tenant left on a node and prints a report that a machine reads.
# Told by the environment: SCRUB_TOKEN, SCRUB_NODE, SCRUB_USERS, SCRUB_PATHS.
set -u
umask 077
export LC_ALL=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

started=$(date +%s)
checks=''
failed=0

# Adds one check; a detail may hold letters that need no escaping only.
note() { # note NAME RESULT DETAIL
  local detail
  detail=$(printf '%s' "$3" | tr -cd 'A-Za-z0-9 ._:/,-' | cut -c1-200)
  checks="$checks${checks:+,}\"$1\":{\"result\":\"$2\",\"detail\":\"$detail\"}"
  [ "$2" != failed ] || failed=1
}

uids=()
unknown=''
for user in $SCRUB_USERS; do
  if uid=$(id -u -- "$user" 2>/dev/null) && [ "$uid" -ne 0 ]; then uids+=("$uid"); else unknown="$unknown $user"; fi
done

# Nobody is known to have used the node: nothing is ended or removed, but what
# ordinary accounts (1000 to 59999) have there is counted, and must be nothing.
look=''
if [ ${#uids[@]} = 0 ]; then look=${SCRUB_FIRST_UID:-1000}; uids=("$look"); fi

# Processes by any of their four user ids. /proc/PID itself may belong to root
# when a process forbids dumps, so its owner is not asked.
processes_of() {
  local uid=$1 file
  for file in /proc/[0-9]*/status; do
    awk -v uid="$uid" -v look="$look" '
      function hit(id) { return look == "" ? id == uid : (id >= look + 0 && id < 60000) }
      /^State:/ { state = $2 }
      /^Pid:/ { pid = $2 }
      /^Uid:/ { mine = (hit($2) || hit($3) || hit($4) || hit($5)) }
      END { if (mine && state != "Z" && state != "X") print pid }' "$file" 2>/dev/null
  done
}
left=0
for uid in ${uids[@]+"${uids[@]}"}; do
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    found=$(processes_of "$uid")
    [ -n "$found" ] && [ -z "$look" ] || break
    # shellcheck disable=SC2086
    kill -KILL $found 2>/dev/null
    sleep 0.3
  done
  [ -z "$found" ] || left=$((left + $(echo "$found" | wc -l)))
done

if [ -n "$unknown" ]; then note processes failed "accounts unknown here:$unknown"
elif [ "$left" = 0 ]; then note processes passed "0 left"
else note processes failed "$left left"; fi

files_of() { # files_of UID PATH
  if [ -z "$look" ]; then find "$2" -xdev -mindepth 1 -uid "$1" -print 2>/dev/null
  else find "$2" -xdev -mindepth 1 -uid "+$((look - 1))" -uid -60000 -print 2>/dev/null; fi
}
left=0
seen=''
for uid in ${uids[@]+"${uids[@]}"}; do
  for path in $SCRUB_PATHS; do
    [ -d "$path" ] || continue
    if [ -z "$look" ]; then
      find "$path" -xdev -mindepth 1 -uid "$uid" -prune -exec chattr -R -i -a -- {} + > /dev/null 2>&1
      find "$path" -xdev -mindepth 1 -uid "$uid" -prune -exec rm -rf --one-file-system -- {} + > /dev/null 2>&1
    fi
    left=$((left + $(files_of "$uid" "$path" | wc -l)))
    seen="$seen $path"
  done
done
if ! command -v find > /dev/null || [ -z "$seen" ]; then note tenant_files failed "nothing could be searched"
elif [ "$left" = 0 ]; then note tenant_files passed "0 left in$seen"
else note tenant_files failed "$left left in$seen"; fi

# System V objects outlive their processes.
# shellcheck disable=SC2016
hit='function hit(id) { return look == "" ? id == uid : (id >= look + 0 && id < 60000) } '
objects_of() { # objects_of UID -> "-m ID", "-q ID", "-s ID" lines
  awk -v uid="$1" -v look="$look" "$hit"'FNR > 1 && (hit($8) || hit($10)) { print "-m", $2 }' /proc/sysvipc/shm 2>/dev/null
  awk -v uid="$1" -v look="$look" "$hit"'FNR > 1 && (hit($8) || hit($10)) { print "-q", $2 }' /proc/sysvipc/msg 2>/dev/null
  awk -v uid="$1" -v look="$look" "$hit"'FNR > 1 && (hit($5) || hit($7)) { print "-s", $2 }' /proc/sysvipc/sem 2>/dev/null
}
left=0
for uid in ${uids[@]+"${uids[@]}"}; do
  [ -n "$look" ] || while read -r kind id; do ipcrm "$kind" "$id" 2>/dev/null; done < <(objects_of "$uid")
  left=$((left + $(objects_of "$uid" | wc -l)))
done
if [ ! -r /proc/sysvipc/shm ]; then note shared_memory passed "the kernel has no System V objects"
elif [ "$left" = 0 ]; then note shared_memory passed "0 left"
else note shared_memory failed "$left left"; fi

# A reset clears GPU memory. It is refused while anything holds the device, so
# it is tried again; a refusal is never passed over.
if ! command -v nvidia-smi > /dev/null; then
  note gpu_memory not_measured "no nvidia-smi on the node"
else
  said=''
  for _ in 1 2 3 4; do
    if said=$(nvidia-smi --gpu-reset 2>&1); then ok=1; break; else ok=0; sleep 5; fi
  done
  holders=$(nvidia-smi --query-compute-apps=pid --format=csv,noheader 2>/dev/null | grep -c '[0-9]')
  if [ "$ok" = 1 ] && [ "$holders" = 0 ]; then note gpu_memory passed "reset"
  else note gpu_memory failed "$holders processes hold GPUs; $said"; fi
fi

printf 'SCRUB-REPORT {"v":1,"token":"%s","node":"%s","started":%d,"finished":%d,"checks":{%s}}\n' \
  "$SCRUB_TOKEN" "${SLURMD_NODENAME:-$SCRUB_NODE}" "$started" "$(date +%s)" "$checks"
printf 'SCRUB-END %s\n' "$SCRUB_TOKEN"
exit "$failed"
