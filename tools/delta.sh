#!/usr/bin/env bash
# Runs the tests of DeltaSink, on the newest Spark for which there is Delta and which CI has an environment of (tools/versions.sh). Maven
# copies Delta into .delta/, comparing the checksums; as root, Maven is installed if missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v mvn >/dev/null; then
    [[ "$(id -u)" == 0 ]] || { echo "delta: Maven is missing: install maven" >&2; exit 1; }
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends maven >/dev/null
fi
mkdir -p .delta
JAVA_HOME="$(cat .venv/java-home)" mvn -q -B -f tools/delta/connector.xml dependency:copy-dependencies -DincludeScope=runtime \
    -DincludeGroupIds=io.delta -DoutputDirectory="$PWD/.delta" >.delta/maven.log 2>&1 ||
    { echo "delta: Maven cannot copy Delta: see .delta/maven.log" >&2; exit 1; }
CHOSEN="" BESIDE="" bash tools/versions.sh 4.1 tests/delta_tables.py
