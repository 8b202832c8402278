#!/bin/bash
# Before a member stops: wait until Hazelcast says that the cluster is safe, which means that no
# partition is moving and every backup is in sync. So two members that stop one after the other
# never have the only copies of a partition. And until the agent is ready: no partition of this
# member is being compared with the log. This script uses no program but bash.
#   wait-until-safe.sh HOST SECONDS
set -u
host=$1 deadline=$((SECONDS + $2))

# answers PORT PATH: whether a GET is answered with 200.
answers() {
  local status=""
  if exec 3<>"/dev/tcp/$host/$1"; then
    printf 'GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' "$2" "$host" >&3
    read -r -t 5 status <&3
    exec 3>&-
  fi 2>/dev/null
  [[ $status == *" 200 "* ]]
}

while ((SECONDS < deadline)); do
  answers 5701 /hazelcast/health/cluster-safe && answers 9413 /readyz && exit 0
  sleep 1
done
# The log has everything that was acknowledged: an unsafe stop costs time, but loses no entry.
echo "the cluster was not safe, or the log not settled, within $2 s" >&2
exit 0
