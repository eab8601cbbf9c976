#!/bin/sh
# A nightly benchmark by cron, in a folder that holds your gate.toml:
#     0 2 * * *  /srv/bench/nightly.sh /srv/bench quickstart --replicates 5
# Each night is kept below nights/. The first one that passes is what later ones are judged by: it stays that, so that a
# slow drift is seen, until you put the name of another night into the file `baseline`.
# `ingest-bench trend nights` says since which night what has changed, and what changed with it.
# It ends as `gate` does: 0 pass, 1 fail, 3 no verdict.
set -eu
cd "$1"
shift
night="nights/$(date -u +%Y-%m-%dT%H-%M-%SZ)"
# It ends with 3 when a run is invalid: the gate says what that means.
code=0
ingest-bench run "$@" --out "$night" || code=$?
case $code in 0 | 3) ;; *) exit $code ;; esac
now=$(echo "$night"/*/*)
set -- "$now" --thresholds gate.toml --junit "$night/junit.xml" --markdown "$night/summary.md"
if test -f baseline; then set -- "$@" --baseline "$(cat baseline)"; fi
code=0
ingest-bench gate "$@" > "$night/verdict.txt" || code=$?
cat "$night/verdict.txt"
if test $code -eq 0 && ! test -f baseline; then echo "$now" > baseline; fi
exit $code
