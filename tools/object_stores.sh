#!/usr/bin/env bash
# Where clusters keep checkpoints, for the tests marked `object_stores`: a NameNode and a DataNode of HDFS, a server of S3's protocol
# that keeps all in memory, and a ResourceManager and a NodeManager of YARN over that HDFS, on loopback, with their data in
# .object_stores/. Maven copies them, and what Spark reads S3 with (650 MB), from Maven Central and compares the checksums; the rest of
# Hadoop is among the jars of pyspark.
#   object_stores.sh start [hdfs] [s3] [yarn]    starts these, or all three, if they do not run; yarn needs hdfs. As root, installs
#                                                Debian's Maven if there is none
#   object_stores.sh stop                        ends what `start` started, by its own process id, and removes the data
#   object_stores.sh check [hdfs] [s3] [yarn]    says one sentence, and fails, if a part of these does not run
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly HOME_DIR="$PWD/.object_stores"
readonly ADDRESSES="$HOME_DIR/addresses"   # read by the tests; has the key, so only the owner may read it
readonly PARTS="namenode datanode s3 resourcemanager nodemanager"
readonly -A PARTS_OF=([hdfs]="namenode datanode" [s3]="s3" [yarn]="resourcemanager nodemanager")
readonly -A JARS_OF=([hdfs]="hdfs" [s3]="s3 s3a" [yarn]="yarn")
readonly BUCKET=windowing

say() { printf 'object stores: %s\n' "$*"; }
stop() { printf 'object stores: %s\n' "$*" >&2; exit 1; }

free_port() { .venv/bin/python -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
java_home() { cat .venv/java-home; }
spark_jars() { echo "$(.venv/bin/python -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')/jars"; }

# Whether a part runs: its process is there, and is the Java that was started here.
runs() {
    local pid
    pid="$(cat "$HOME_DIR/$1.pid" 2>/dev/null)" && grep -qzxF -- "-Dwindowing.part=$HOME_DIR/$1" "/proc/$pid/cmdline" 2>/dev/null
}

# Starts a class as a part, with a class path, and waits until it listens on a port; what follows goes to it.
launch() {
    local name="$1" port="$2" class_path="$3" pid
    shift 3
    JAVA_HOME="$(java_home)" setsid "$(java_home)/bin/java" -Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 "-Dwindowing.part=$HOME_DIR/$name" \
        -cp "$class_path" "$@" >"$HOME_DIR/$name.log" 2>&1 </dev/null &
    pid=$!
    echo "$pid" >"$HOME_DIR/$name.pid"
    for _ in {1..600}; do
        if runs "$name" && (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then return; fi
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
    done
    stop "$name did not start: see $HOME_DIR/$name.log"
}

# Writes down where a store is, under the name by which the tests ask for it.
announce() {
    local what="$1" variable="$2" value="$3" port="$4"
    echo "$variable=$value" >"$HOME_DIR/$what.address"
    say "${what^^} runs on 127.0.0.1:$port"
}

copy() {
    JAVA_HOME="$(java_home)" mvn -q -B -f "tools/object_stores/$1.xml" dependency:copy-dependencies -DincludeScope=runtime \
        -DoutputDirectory="$HOME_DIR/jars/$1" >"$HOME_DIR/maven.log" 2>&1 || stop "Maven cannot copy $1: see $HOME_DIR/maven.log"
}

properties() {
    echo "<configuration>"
    while (($#)); do
        echo "<property><name>$1</name><value>$2</value></property>"
        shift 2
    done
    echo "</configuration>"
}

start_hdfs() {
    local conf="$HOME_DIR/hadoop" port web data
    port="$(free_port)" web="$(free_port)" data="$(free_port)"
    rm -rf "$HOME_DIR/hdfs"
    mkdir -p "$conf"
    properties fs.defaultFS "hdfs://127.0.0.1:$port" hadoop.tmp.dir "$HOME_DIR/hdfs" >"$conf/core-site.xml"
    properties dfs.replication 1 dfs.namenode.http-address "127.0.0.1:$web" dfs.datanode.address "127.0.0.1:$data" \
        dfs.datanode.http.address 127.0.0.1:0 dfs.datanode.ipc.address 127.0.0.1:0 dfs.datanode.hostname 127.0.0.1 \
        dfs.namenode.datanode.registration.ip-hostname-check false dfs.namenode.safemode.extension 0 >"$conf/hdfs-site.xml"
    local class_path="$conf:$HOME_DIR/jars/hdfs/*:$(spark_jars)/*" server=org.apache.hadoop.hdfs.server
    "$(java_home)/bin/java" -Xmx256m -cp "$class_path" $server.namenode.NameNode -format -nonInteractive >"$HOME_DIR/format.log" 2>&1 ||
        stop "HDFS cannot be made: see $HOME_DIR/format.log"
    launch namenode "$port" "$class_path" $server.namenode.NameNode
    launch datanode "$data" "$class_path" $server.datanode.DataNode
    announce hdfs WINDOWING_HDFS_URL "hdfs://127.0.0.1:$port" "$port"
}

# Its settings lie beside those of HDFS: the folder is HADOOP_CONF_DIR for whoever submits a job.
start_yarn() {
    local conf="$HOME_DIR/hadoop" port node name ports=() server=org.apache.hadoop.yarn.server
    port="$(free_port)" node="$(free_port)"
    for name in scheduler resource-tracker admin webapp; do ports+=("yarn.resourcemanager.$name.address" "127.0.0.1:$(free_port)"); done
    for name in localizer webapp; do ports+=("yarn.nodemanager.$name.address" "127.0.0.1:$(free_port)"); done
    properties yarn.resourcemanager.hostname 127.0.0.1 yarn.nodemanager.hostname 127.0.0.1 yarn.resourcemanager.address "127.0.0.1:$port" \
        yarn.nodemanager.address "127.0.0.1:$node" "${ports[@]}" \
        yarn.resourcemanager.scheduler.class $server.resourcemanager.scheduler.fifo.FifoScheduler \
        yarn.scheduler.minimum-allocation-mb 256 yarn.nodemanager.resource.memory-mb 8192 yarn.nodemanager.resource.cpu-vcores 8 \
        yarn.nodemanager.pmem-check-enabled false yarn.nodemanager.vmem-check-enabled false \
        yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage 100 \
        yarn.nodemanager.local-dirs "$HOME_DIR/yarn/local" yarn.nodemanager.log-dirs "$HOME_DIR/yarn/logs" \
        yarn.nodemanager.delete.debug-delay-sec 3600 yarn.resourcemanager.am.max-attempts 4 >"$conf/yarn-site.xml"
    local class_path="$conf:$HOME_DIR/jars/hdfs/*:$HOME_DIR/jars/yarn/*:$(spark_jars)/*"
    launch resourcemanager "$port" "$class_path" $server.resourcemanager.ResourceManager
    launch nodemanager "$node" "$class_path" $server.nodemanager.NodeManager
    announce yarn WINDOWING_YARN_CONF "$conf" "$port"
}

start_s3() {
    local port key
    port="$(free_port)" key="$(.venv/bin/python -c 'import secrets; print(secrets.token_hex(16))')"
    printf '%s\n' "s3proxy.endpoint=http://127.0.0.1:$port" "s3proxy.authorization=aws-v2-or-v4" "s3proxy.identity=windowing" \
        "s3proxy.credential=$key" "jclouds.provider=transient" "jclouds.identity=none" "jclouds.credential=none" >"$HOME_DIR/s3.conf"
    echo '<configuration><root level="OFF"/></configuration>' >"$HOME_DIR/logback.xml"  # by default it logs each byte: gigabytes
    launch s3 "$port" "$HOME_DIR/jars/s3/*" "-Dlogback.configurationFile=$HOME_DIR/logback.xml" \
        org.gaul.s3proxy.Main --properties "$HOME_DIR/s3.conf"
    AWS_ACCESS_KEY_ID=windowing AWS_SECRET_ACCESS_KEY="$key" .venv/bin/python - "127.0.0.1:$port" "$BUCKET" <<'PYTHON' ||
import sys
from pyarrow.fs import S3FileSystem
S3FileSystem(endpoint_override=sys.argv[1], scheme="http", region="us-east-1", allow_bucket_creation=True).create_dir(sys.argv[2])
PYTHON
        stop "the bucket cannot be made: see $HOME_DIR/s3.log"
    announce s3 WINDOWING_S3_URL "s3://windowing:$key@127.0.0.1:$port/$BUCKET" "$port"
}

start() {
    [[ -x .venv/bin/python ]] || stop ".venv is missing: run make setup first."
    if ! command -v mvn >/dev/null; then
        [[ "$(id -u)" == 0 && -e /etc/debian_version ]] || stop "Maven is missing: install it (Debian, Ubuntu: apt-get install maven)."
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends maven >/dev/null
    fi
    umask 077
    mkdir -p "$HOME_DIR"
    for what in "$@"; do
        check "$what" 2>/dev/null && continue
        stop_parts ${PARTS_OF[$what]}
        if [[ "$what" == hdfs ]]; then stop_parts ${PARTS_OF[yarn]}; fi
        say "Maven copies $what"
        for jars in ${JARS_OF[$what]}; do copy "$jars"; done
        "start_$what"
    done
    cat "$HOME_DIR"/*.address >"$ADDRESSES"
}

# Ends a part by SIGTERM, so that a NodeManager ends its containers; one that is there after 20 seconds by SIGKILL.
stop_parts() {
    local name pid signal
    for name in "$@"; do
        runs "$name" || continue
        pid="$(cat "$HOME_DIR/$name.pid")"
        for signal in TERM KILL; do
            kill "-$signal" "$pid" 2>/dev/null || true
            for _ in {1..200}; do runs "$name" || break 2; sleep 0.1; done
        done
        if runs "$name"; then stop "$name does not end: process $pid"; fi
        say "$name is stopped"
    done
}

# The processes that work in a folder below .object_stores/: containers of YARN.
inside() {
    local process
    for process in /proc/[0-9]*; do
        if [[ "$(readlink "$process/cwd" 2>/dev/null)" == "$HOME_DIR"/* ]]; then echo "${process#/proc/}"; fi
    done
}

stop_all() {
    stop_parts $PARTS
    local left
    left="$(inside)"
    [[ -z "$left" ]] || stop "containers have outlived their NodeManager, the data is kept: end the processes" $left
    rm -rf "$HOME_DIR"
}

# In a shell of its own, so that `start` can ask.
check() (
    missing=()
    for what in "$@"; do
        for name in ${PARTS_OF[$what]}; do runs "$name" || missing+=("$name"); done
    done
    ((${#missing[@]} == 0)) || stop "not running: ${missing[*]}; start them with make object-stores."
)

command="${1:-}"
shift || true
(($#)) || set -- hdfs s3 yarn
for what in "$@"; do [[ -n "${PARTS_OF[$what]:-}" ]] || stop "there is no $what; say hdfs, s3 or yarn."; done
case "$command" in
start) start "$@" ;;
stop) stop_all ;;
check) check "$@" ;;
*) stop "say start, stop or check." ;;
esac
