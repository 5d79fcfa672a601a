#!/bin/sh
# What happens on a switch. It arrives on the standard input of `sh -s -- LOCK_FILE ACTION ...`; nothing stays on the switch but the
# lock and, beside it in LOCK_FILE.turns, the latest turn of each port.
#
#   observe PREFIX VTYSH...                                  every device, the walls of our bridges, what FRR knows
#   attach  PREFIX PORT TURN TAG SEGMENT VTEP UDP_PORT MTU|- the port is in the segment's bridge, and the bridge is as it should be
#   detach  PREFIX PORT TURN SEGMENT|-                       the port is in no bridge and shut; bridges without a port are removed.
#                                                            With SEGMENT: only a port that is in its bridge, and in no later turn
#
# Every action may be killed between any two commands; the same action again then completes it. Changes hold a lock, so that looking
# and acting are one. A device is ours when its alias begins with PREFIX; others are never touched. Exit codes are told apart by the
# caller: 40 locked, 41 no such port, 42 in another network of ours, 43 not ours, 44 segment in use, 45 a command failed, 46 a later turn
# was told. TURN 0 is always made and never remembered.
set -u
export LC_ALL=C PATH="${PATH:-/bin}:/usr/sbin:/usr/bin:/sbin:/bin"
net=/sys/class/net

fail() {
  code=$1
  shift
  printf 'fabric: %s\n' "$*" >&2
  exit "$code"
}

run() {
  "$@" >&2 || fail 45 "failed: $*"
}

tag_of() {
  tag_found=
  [ ! -r "$net/$1/ifalias" ] || read -r tag_found <"$net/$1/ifalias" || :
  printf '%s' "$tag_found"
}

master_of() {
  link=$(readlink "$net/$1/master") || link=
  printf '%s' "${link##*/}"
}

is_up() {
  read -r flags <"$net/$1/flags" && [ $((flags & 1)) -eq 1 ]
}

is_untouched() { # just made by an action that was killed before it put its tag on: nothing uses it
  ! is_up "$1" && [ ! -e "$net/$1/master" ] && ! has_port "$1"
}

has_port() { # BRIDGE: something besides its own tunnel is a member
  for member in "$net/$1/brif"/*; do
    [ ! -e "$member" ] || [ "${member##*/}" = "cpx${1#cpb}" ] || return 0
  done
  return 1
}

take_turns() { # -x | -s
  exec 9>>"$lock" || fail 45 "cannot open $lock"
  flock "$1" -w 4 9 || fail 40 "another change is under way"
}

is_over() { # something was decided about the port after what we are told to do
  [ "$turn" -lt "$(last_turn)" ] && [ "$turn" -ne 0 ]
}

last_turn() {
  last=0
  [ ! -r "$lock.turns/$port" ] || read -r last <"$lock.turns/$port" || :
  case $last in
    '' | *[!0-9]*) last=0 ;;
  esac
  printf '%s' "$last"
}

note_turn() { # before anything is done: who comes late must find it
  [ "$turn" -gt "$(last_turn)" ] || return 0
  run mkdir -p "$lock.turns"
  printf '%s\n' "$turn" >"$lock.turns/.new" || fail 45 "cannot write $lock.turns/.new"
  run mv -f "$lock.turns/.new" "$lock.turns/$port"
}

wall_files() { # DEVICE: file and value of each setting that keeps a tenant from the switch's own stack, and from being routed by it
  printf '%s %s\n' "/proc/sys/net/ipv4/conf/$1/forwarding" 0 "/proc/sys/net/ipv4/conf/$1/rp_filter" 1 \
    "/proc/sys/net/ipv4/conf/$1/arp_ignore" 8 "/proc/sys/net/ipv6/conf/$1/disable_ipv6" 1
}

raise_wall() {
  wall_files "$1" | while read -r file value; do
    [ -e "$file" ] || continue
    printf '%s\n' "$value" >"$file" || exit 1
  done || fail 45 "the wall of $1 cannot be raised"
}

has_wall() {
  wall_files "$1" | while read -r file value; do
    [ -e "$file" ] || continue
    found=
    read -r found <"$file" || : # a shell that reads byte by byte sees the end of such a file before its line's
    [ "$found" = "$value" ] || exit 1
  done
}

claim() { # DEVICE: it does not exist, or it is this network's; a half-made one is removed
  [ -e "$net/$1" ] || return 0
  found=$(tag_of "$1")
  [ "$found" != "$tag" ] || return 0
  if [ -z "$found" ] && is_untouched "$1"; then
    run ip link del dev "$1"
    return 0
  fi
  case $found in
    "$prefix"*) fail 44 "segment $segment is in use by $found" ;;
    *) fail 43 "a device $1 is there that is not ours" ;;
  esac
}

vxlan_is_right() {
  facts=" $(ip -o -d link show dev "$vxlan") "
  for want in "vxlan id $segment" "local $vtep" "dstport $udp_port" nolearning; do
    case $facts in
      *" $want "*) ;;
      *) return 1 ;;
    esac
  done
  case $facts in
    *" remote "* | *" group $vtep"*) return 1 ;;
  esac
}

make_bridge() {
  if [ ! -e "$net/$bridge" ]; then
    run ip link add name "$bridge" type bridge stp_state 0 forward_delay 0 mcast_snooping 0
    run ip link set dev "$bridge" alias "$tag"
  fi
  raise_wall "$bridge"
  is_up "$bridge" || run ip link set dev "$bridge" up
}

make_vxlan() {
  if [ -e "$net/$vxlan" ] && ! vxlan_is_right; then
    run ip link del dev "$vxlan"
  fi
  if [ ! -e "$net/$vxlan" ]; then
    if [ "$mtu" = - ]; then
      run ip link add name "$vxlan" type vxlan id "$segment" local "$vtep" dstport "$udp_port" nolearning
    else
      run ip link add name "$vxlan" mtu "$mtu" type vxlan id "$segment" local "$vtep" dstport "$udp_port" nolearning
    fi
    run ip link set dev "$vxlan" alias "$tag"
  fi
  [ "$(master_of "$vxlan")" = "$bridge" ] || run ip link set dev "$vxlan" master "$bridge"
  run bridge link set dev "$vxlan" learning off
  is_up "$vxlan" || run ip link set dev "$vxlan" up
}

remove_unused() {
  for path in "$net"/cpb[0-9]* "$net"/cpx[0-9]*; do
    [ -e "$path" ] || continue
    device=${path##*/}
    number=${device#cp?}
    found=$(tag_of "$device")
    case $found in
      "$prefix"*) ;;
      '') is_untouched "$device" || continue ;;
      *) continue ;;
    esac
    case $device in
      cpx*) [ ! -e "$path/master" ] || continue ;;
      *)
        has_port "$device" && continue
        [ ! -e "$net/cpx$number" ] || [ "$(master_of "cpx$number")" != "$device" ] || run ip link del dev "cpx$number"
        ;;
    esac
    run ip link del dev "$device"
  done
}

observe() {
  prefix=$1
  shift
  take_turns -s
  echo '=links'
  ip -j -d addr show || fail 45 "ip does not tell the links"
  echo
  echo '=walls'
  for path in "$net"/*; do
    device=${path##*/}
    case $(tag_of "$device") in
      "$prefix"*) [ ! -d "$path/bridge" ] || ! has_wall "$device" || printf '%s\n' "$device" ;;
    esac
  done
  echo '=evpn'
  timeout 3 "$@" -c 'show evpn vni json' 2>&1 </dev/null || echo 'no answer'
  echo
  echo '=end'
}

attach() {
  prefix=$1 port=$2 turn=$3 tag=$4 segment=$5 vtep=$6 udp_port=$7 mtu=$8
  bridge=cpb$segment vxlan=cpx$segment
  take_turns -x
  [ -e "$net/$port" ] || fail 41 "there is no port $port"
  ! is_over || fail 46 "a later turn of $port was told"
  note_turn
  master=$(master_of "$port")
  if [ -n "$master" ] && [ "$master" != "$bridge" ]; then
    found=$(tag_of "$master")
    case $found in
      "$prefix"*) fail 42 "$port carries $found" ;;
      *) fail 43 "$port is a member of $master, which is not ours" ;;
    esac
  fi
  claim "$bridge"
  claim "$vxlan"
  make_bridge
  make_vxlan
  if [ "$master" != "$bridge" ]; then
    run ip link set dev "$port" down
    run ip link set dev "$port" master "$bridge"
  fi
  is_up "$port" || run ip link set dev "$port" up
  [ "$(master_of "$port")" = "$bridge" ] || fail 45 "$port is not in $bridge"
  echo '=end'
}

detach() {
  prefix=$1 port=$2 turn=$3 only=$4
  take_turns -x
  [ -e "$net/$port" ] || fail 41 "there is no port $port"
  if [ "$only" = - ] || ! is_over; then
    note_turn
    master=$(master_of "$port")
    if [ "$only" = - ] || [ "$master" = "cpb$only" ]; then
      take_off
    fi
  fi
  echo '=end'
}

take_off() {
  if [ -n "$master" ]; then
    case $(tag_of "$master") in
      "$prefix"*) ;;
      *) fail 43 "$port is a member of $master, which is not ours" ;;
    esac
  fi
  ! is_up "$port" || run ip link set dev "$port" down
  [ -z "$master" ] || run ip link set dev "$port" nomaster
  [ -z "$(master_of "$port")" ] || fail 45 "$port is still in a bridge"
  remove_unused
}

main() {
  lock=$1 action=$2
  shift 2
  case $action in
    observe | attach | detach) "$action" "$@" ;;
    *) fail 45 "no action $action" ;;
  esac
}

# The last line is the only one that acts: a script that arrives cut short does nothing.
main "$@"
