# shellcheck shell=bash disable=SC2154
# Runs the script $2; ends at the first failing command, or where the script says `exit`, and leaves the line behind in the file $1.
exec 9>"$1"; set -eE -o pipefail
exit() { set -- "${1:-$?}"; _line=${BASH_LINENO[0]}; builtin exit "$1"; }
trap '_line=$LINENO' ERR
trap '_code=$?; [ "$_code" = 0 ] || echo "${_line:-}" >&9' EXIT
# shellcheck source=/dev/null
. "$2"
