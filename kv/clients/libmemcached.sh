#!/usr/bin/env bash
# The tools of libmemcached (Debian: libmemcached-tools) against an embedded KV node: ping, store, read, delete, statistics.
#
#   tidemark kv --allow-plain --buckets plain:5a3e:1 …      # one bucket of one vbucket: the tools know of neither
#   kv/clients/libmemcached.sh HOST:PORT USER PASSWORD
#
# Ends with "ok" and status 0, or at the first thing that is not as it should be.
set -euo pipefail
if [ $# -ne 3 ]; then
  echo "usage: $0 HOST:PORT USER PASSWORD" >&2
  exit 2
fi

# The tools are called memcp and so on by their makers, memccp and so on by Debian.
tool() {
  local name
  for name in "mem$1" "memc$1"; do
    if command -v "$name" >/dev/null; then
      echo "$name"
      return
    fi
  done
  echo "no mem$1 or memc$1 here: install libmemcached-tools" >&2
  return 1
}
access=(--binary --servers="$1" --username="$2" --password="$3")
cp=$(tool cp) cat=$(tool cat) rm=$(tool rm) stat=$(tool stat) ping=$(tool ping) exist=$(tool exist) touch=$(tool touch)

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
echo '{"kind":"airport","name":"Frankfurt"}' >"$dir/airport"
head -c 3000000 /dev/urandom | base64 >"$dir/large"

"$ping" --servers="$1" --username="$2" --password="$3" && echo "$ping: the node answers"
"$cp" "${access[@]}" --set "$dir/airport" "$dir/large"
"$cat" "${access[@]}" airport | grep -q Frankfurt && echo "$cp, $cat: a document is stored and read"
"$cat" "${access[@]}" large | cmp - <(cat "$dir/large"; echo) && echo "$cp, $cat: a document of 4 MB, byte by byte"
if "$cp" "${access[@]}" --add "$dir/airport" 2>/dev/null; then
  echo "$cp --add: stored over a document that is there" >&2
  exit 1
fi
"$touch" "${access[@]}" --expire=3600 airport && echo "$touch: another expiry"
"$exist" "${access[@]}" airport && echo "$exist: it is there"
"$rm" "${access[@]}" airport && echo "$rm: deleted"
if "$cat" "${access[@]}" airport 2>/dev/null | grep -q Frankfurt; then
  echo "$rm: the document is still there" >&2
  exit 1
fi
"$stat" "${access[@]}" | grep -q curr_items && echo "$stat: statistics"
echo ok
