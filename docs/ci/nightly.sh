#!/bin/sh
# Nightly benchmark for cron, in a folder that holds your gate.toml:
#     0 2 * * *  /srv/bench/nightly.sh /srv/bench quickstart --replicates 5
# Each night is kept below nights/. The first night that passes becomes the baseline of all later nights, so that a slow
# drift is detected. To choose another baseline, write the path of that night's results into the file `baseline`.
# `ingest-bench trend nights` prints the night of each change, and what changed with it.
# Exit code as of `gate`: 0 pass, 1 fail, 3 no verdict; 4 if the baseline cannot be written.
set -eu
cd "$1"
shift
night="nights/$(date -u +%Y-%m-%dT%H-%M-%SZ)"
# Exit code 3 means that a run is invalid, which the gate reports.
code=0
ingest-bench run "$@" --out "$night" || code=$?
case $code in 0 | 3) ;; *) exit $code ;; esac
now=$(echo "$night"/*/[0-9]*)
set -- "$now" --thresholds gate.toml --junit "$night/junit.xml" --markdown "$night/summary.md"
if test -s baseline; then set -- "$@" --baseline "$(cat baseline)"; fi
code=0
ingest-bench gate "$@" > "$night/verdict.txt" || code=$?
cat "$night/verdict.txt"
# Complete or not at all: another night may read it, and the disk may be full.
if test $code -eq 0 && ! test -s baseline; then
    echo "$now" > "$night/baseline" && mv "$night/baseline" baseline || exit 4
fi
exit $code
