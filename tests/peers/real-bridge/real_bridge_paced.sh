#!/bin/bash
# real_bridge_paced.sh DIR PACE_MS [PORT] -- UNMODIFIED bridge binary over a host-owned store (custom_store.py) that hands
# out one event per call, each PACE_MS later. DIR/bridge.env: BASE TOKEN PID STORE_PID AGENT_ID RUN_ID.
set -eu
HERE=$(cd "$(dirname "$0")" && pwd); DIR=$(mkdir -p "${1:?dir}" && cd "$1" && pwd); PACE=${2:?pace}
BRIDGE=${BRIDGE:?set BRIDGE to the folder cursor_sdk/_vendor/bridge of an installed cursor-sdk 1.1.0}
mkdir -p "$DIR/ws" "$DIR/home" "$DIR/tmp"
python3 "$HERE/make_store.py" "$DIR/store" "$DIR/ws" >/dev/null
SP=${BACKEND_PORT:-18998}
python3 "$HERE/custom_store.py" "$DIR/store" "$SP" store-token "$PACE" 2>"$DIR/store.log" </dev/null >/dev/null & SPID=$!
cd "$DIR/ws"
env -i PATH="$PATH" HOME="$DIR/home" TMPDIR="$DIR/tmp" CURSOR_BACKEND_URL="http://127.0.0.1:9" \
  "${NODE:-node}" "$BRIDGE/dist/bin/cursor-sdk-bridge.js" --host 127.0.0.1 --port "${3:-0}" --workspace "$DIR/ws" --verbose \
  --local-store '{"type":"custom"}' --store-callback-url "http://127.0.0.1:$SP" --store-callback-auth-token store-token \
  >"$DIR/out.log" 2>"$DIR/err.log" </dev/null & PID=$!
echo $PID >"$DIR/pid"
for _ in $(seq 100); do
  L=$(sed -n 's/^cursor-sdk-bridge ready //p' "$DIR/err.log"); [ -n "$L" ] && break
  kill -0 $PID 2>/dev/null || { cat "$DIR/err.log" >&2; kill $SPID; exit 1; }
  sleep 0.1
done
python3 - "$L" $PID $SPID >"$DIR/bridge.env" <<'P'
import json, sys
a = json.loads(sys.argv[1])
print(f"BASE={a['url']}\nTOKEN={open(a['authTokenFile']).read().strip()}\nPID={sys.argv[2]}\nSTORE_PID={sys.argv[3]}\nAGENT_ID=agent-lab-1\nRUN_ID=run-0001")
P
cat "$DIR/bridge.env"
