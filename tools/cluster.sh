#!/usr/bin/env bash
# A standalone cluster of Spark for the tests marked `cluster`: a master and two workers from the jars of the pyspark that is installed,
# on loopback, each worker at an address of its own, since Spark makes no second attempt of a task on the same host. All that it writes
# lies in .cluster/.
#   cluster.sh start    starts what does not run; a worker that was killed is started again. As root, installs Debian's iproute2 if there
#                       is no `ip`, by which one test makes network namespaces
#   cluster.sh stop     ends what `start` started, by its own process groups, and removes the data
#   cluster.sh check    says one sentence, and fails, if a part does not run
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly HOME_DIR="$PWD/.cluster"
readonly ADDRESS="$HOME_DIR/address"   # read by the tests: the URL of the master
readonly PARTS="master worker1 worker2"
readonly CORES="${CORES:-2}" MEMORY="${MEMORY:-2g}"   # of each worker

say() { printf 'cluster: %s\n' "$*"; }
stop() { printf 'cluster: %s\n' "$*" >&2; exit 1; }

free_port() { .venv/bin/python -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# Whether a part runs: its process is there, and is the Java that was started here.
runs() {
    local pid
    pid="$(cat "$HOME_DIR/$1.pid" 2>/dev/null)" && grep -qz -- "$HOME_DIR/$1\$" "/proc/$pid/cmdline" 2>/dev/null
}

# Starts a class of Spark as a part, in a process group of its own, which its executors join.
launch() {
    local name="$1" host="$2" home
    shift 2
    home="$(.venv/bin/python -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')"
    mkdir -p "$HOME_DIR/$name"
    : >"$HOME_DIR/$name.log"
    env -u PYTHONPATH -u PYSPARK_PYTHON -u SPARK_CONF_DIR JAVA_HOME="${JAVA_HOME:-$(cat .venv/java-home)}" SPARK_HOME="$home" \
        SPARK_LOCAL_IP="$host" SPARK_DAEMON_MEMORY=256m SPARK_DAEMON_JAVA_OPTS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC \
        -Dspark.master.rest.enabled=false -Dwindowing.part=$HOME_DIR/$name" \
        setsid "$home/bin/spark-class" "$@" --host "$host" --webui-port 0 >>"$HOME_DIR/$name.log" 2>&1 </dev/null &
    echo $! >"$HOME_DIR/$name.pid"
}

# Waits until a part has written a line to its log.
await() {
    local name="$1" line="$2" until=$((SECONDS + 120))
    until grep -q "$line" "$HOME_DIR/$name.log"; do
        if ((SECONDS > until)) || ! kill -0 "$(cat "$HOME_DIR/$name.pid")" 2>/dev/null; then
            stop "$name did not start: see $HOME_DIR/$name.log"
        fi
        sleep 0.2
    done
}

start() {
    [[ -x .venv/bin/python ]] || stop ".venv is missing: run make setup first."
    local deploy=org.apache.spark.deploy port number started=()
    if ! command -v ip >/dev/null && [[ "$(id -u)" == 0 && -e /etc/debian_version ]]; then
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends iproute2 >/dev/null ||
            say "iproute2 cannot be installed: the test that needs network namespaces will be skipped"
    fi
    mkdir -p "$HOME_DIR"
    if ! runs master; then
        stop_all
        mkdir -p "$HOME_DIR"
        port="$(free_port)"
        launch master 127.0.0.1 "$deploy.master.Master" --port "$port"
        await master "I have been elected leader"
        echo "spark://127.0.0.1:$port" >"$ADDRESS"
        say "the master runs at $(cat "$ADDRESS")"
    fi
    for number in 1 2; do
        runs "worker$number" && continue
        launch "worker$number" "127.0.0.$((number + 1))" "$deploy.worker.Worker" --cores "$CORES" --memory "$MEMORY" \
            --work-dir "$HOME_DIR/worker$number" "$(cat "$ADDRESS")"
        started+=("worker$number")
    done
    for name in "${started[@]}"; do
        await "$name" "Successfully registered with master"
        say "$name runs, with $CORES cores and $MEMORY"
    done
}

stop_all() {
    local name pid
    for name in $PARTS; do
        if runs "$name"; then
            pid="$(cat "$HOME_DIR/$name.pid")"
            kill -- "-$pid" 2>/dev/null || true
            for _ in {1..100}; do [[ -e "/proc/$pid" ]] || break; sleep 0.1; done
            say "$name is stopped"
        fi
    done
    rm -rf "$HOME_DIR"
}

check() {
    local missing=() name
    for name in $PARTS; do runs "$name" || missing+=("$name"); done
    ((${#missing[@]} == 0)) || stop "not running: ${missing[*]}; start the cluster with make cluster."
}

case "${1:-}" in
start) start ;;
stop) stop_all ;;
check) check ;;
*) stop "say start, stop or check." ;;
esac
