#!/bin/bash
# Runs one tool between nodes and prints a report that a machine reads.
# Told by the environment: CHECK_TOKEN, CHECK_RUN, CHECK_KIND (together or pair), CHECK_MISSING, CHECK_LIMIT, and for a pair
# CHECK_FROM and CHECK_TO. The operator's command stands in COMMAND, put here by whoever submits this.
set -u
umask 077
export LC_ALL=C
@COMMAND@

# A node on which the tool is not there says so by status 127, which no tool of ours uses itself.
# shellcheck disable=SC2016
there='command -v -- "$1" > /dev/null || exit 127; exec "$@"'
errors=$(mktemp) || exit 1
server=''
# Called by the trap, so that a partner never outlives the run.
# shellcheck disable=SC2329
tidy() {
  [ -z "$server" ] || kill "$server" 2> /dev/null
  rm -f "$errors"
}
trap tidy EXIT

on() { # on NODE ARGUMENTS: the command on one node, for no longer than the run may take
  local node=$1
  shift
  timeout "$CHECK_LIMIT" srun --nodes=1 --ntasks=1 --nodelist="$node" bash -c "$there" check "${COMMAND[@]}" "$@"
}

pair() {
  local tries status=1
  on "$CHECK_TO" > /dev/null 2> "$errors.server" &
  server=$!
  # The client gives up at once where nobody listens yet: it tries again while the server's step lives.
  for tries in 1 2 3 4 5 6 7 8 9 10; do
    output=$(on "$CHECK_FROM" "$CHECK_TO" 2> "$errors")
    status=$?
    [ "$status" != 0 ] && [ "$status" != 127 ] && [ "$status" != 124 ] || break
    kill -0 "$server" 2> /dev/null || break
    [ "$tries" = 10 ] || sleep 1
  done
  if [ "$status" != 0 ] && ! kill -0 "$server" 2> /dev/null; then
    wait "$server"
    [ $? != 127 ] || status=127
    cat "$errors.server" >> "$errors"
  fi
  rm -f "$errors.server"
  return "$status"
}

printf 'CHECK-BEGIN %s %s\n' "$CHECK_TOKEN" "$CHECK_RUN"
output=''
if [ -n "$CHECK_MISSING" ]; then
  echo "$CHECK_MISSING" > "$errors"
  status=127
elif [ "$CHECK_KIND" = pair ]; then
  pair
  status=$?
else
  output=$(timeout "$CHECK_LIMIT" srun --kill-on-bad-exit=1 bash -c "$there" check "${COMMAND[@]}" 2> "$errors")
  status=$?
fi
[ -z "$output" ] || printf '%s\n' "$output"
says=$(grep -v '^srun: error: .* task ' "$errors" | tail -n 3 | tr '\n' ' ' | tr -cd 'A-Za-z0-9 ._:/,-' | cut -c1-200)
printf 'CHECK-SAYS %s\n' "${says% }"
printf 'CHECK-END %s %s %d\n' "$CHECK_TOKEN" "$CHECK_RUN" "$status"
