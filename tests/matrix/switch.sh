#!/bin/sh
# A switch of one port for the fault matrix: takes the adapter's words, keeps what it was told in a folder, and goes wrong as the
# folder's file `fault` says. Arguments: FOLDER sh -s -- LOCK ACTION PREFIX ...; the adapter's own script on standard input is not run.
dir=$1
shift 4
cat >/dev/null
action=$2 tag=${6:-} segment=${7:-} vtep=${8:-} udp=${9:-}
fault=
[ ! -r "$dir/fault" ] || read -r fault <"$dir/fault"

ends() {
  echo "$2" >&2
  exit "$1"
}

case $fault in
  busy) ends 40 "fabric: another change is under way" ;;
  port_missing) ends 41 "fabric: there is no port" ;;
  port_taken) ends 42 "fabric: the port carries another network" ;;
  device_foreign) ends 43 "fabric: a device is there that is not ours" ;;
  segment_taken) ends 44 "fabric: the segment is in use" ;;
  command_failed) ends 45 "fabric: failed: ip link set" ;;
  not_permitted) ends 45 "RTNETLINK answers: Operation not permitted fabric: failed: ip" ;;
  dies_before) kill -9 $$ ;;
  hangs_before) exec sleep 30 ;;
esac

if [ "$fault" != lies ]; then
  case $action in
    attach) echo "$segment $tag $vtep $udp" >"$dir/carried" ;;
    detach) rm -f "$dir/carried" ;;
  esac
fi

case $fault in
  dies_after) kill -9 $$ ;;
  hangs_after) exec sleep 30 ;;
  cut_short) echo "=links" && exit 0 ;;
esac

if [ "$action" = observe ]; then
  up='"flags":["BROADCAST","UP","LOWER_UP"],"operstate":"UP","addr_info":[]'
  echo "=links"
  if [ "$fault" = garbled ]; then
    echo '[{"ifname":'
  elif [ -r "$dir/carried" ]; then
    read -r segment tag vtep udp <"$dir/carried"
    printf '[{"ifname":"swp1",%s,"master":"cpb%s"},' "$up" "$segment"
    printf '{"ifname":"cpb%s",%s,"ifalias":"%s","linkinfo":{"info_kind":"bridge"}}' "$segment" "$up" "$tag"
    [ "$fault" = half_made ] || printf ',{"ifname":"cpx%s",%s,"master":"cpb%s","ifalias":"%s","linkinfo":{"info_kind":"vxlan","info_data":{"id":%s,"local":"%s","port":%s,"learning":false},"info_slave_data":{"learning":false}}}' \
      "$segment" "$up" "$segment" "$tag" "$segment" "$vtep" "$udp"
    echo ']'
  else
    echo '[{"ifname":"swp1","flags":["BROADCAST"],"operstate":"DOWN","addr_info":[]}]'
  fi
  echo "=walls"
  [ -z "$segment" ] || echo "cpb$segment"
  echo "=evpn"
  if [ -n "$segment" ] && [ "$fault" != frr_away ]; then
    printf '{"%s":{"vni":%s,"vxlanIf":"cpx%s"}}\n' "$segment" "$segment" "$segment"
  fi
fi
echo "=end"
