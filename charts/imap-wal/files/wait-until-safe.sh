#!/bin/bash
# Before a member stops: wait until Hazelcast says that the cluster is safe, which means that no
# partition is moving and every backup is in sync. So two members that stop one after the other
# never have the only copies of a partition. It also waits while the agent says that partitions are
# compared with the log. This script uses no program but bash.
#   wait-until-safe.sh HOST SECONDS
set -u
host=$1 deadline=$((SECONDS + $2))

# answer PORT PATH: the whole answer to a GET; empty if there is none.
answer() {
  local text=""
  if exec 3<>"/dev/tcp/$host/$1"; then
    printf 'GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' "$2" "$host" >&3
    read -r -t 5 -d '' text <&3
    exec 3>&-
    printf '%s' "$text"
  fi 2>/dev/null
}

while ((SECONDS < deadline)); do
  safe=$(answer 5701 /hazelcast/health/cluster-safe)
  if [[ ${safe%%$'\n'*} == *" 200 "* ]]; then
    [[ $(answer 9413 /readyz) == *"partitions with the log"* ]] || exit 0
  fi
  sleep 1
done
# The log has everything that was acknowledged: an unsafe stop costs time, but loses no entry.
echo "the cluster was not safe, or partitions were compared with the log, for $2 s" >&2
exit 0
