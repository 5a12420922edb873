#!/usr/bin/env bash
# Where clusters keep checkpoints, for the tests marked `object_stores`: a NameNode and a DataNode of HDFS, and a server of S3's protocol
# that keeps all in memory, on loopback, with their data in .object_stores/. Maven copies them, and what Spark reads S3 with (650 MB), from
# Maven Central and compares the checksums; the rest of Hadoop is among the jars of pyspark.
#   object_stores.sh start    starts what does not run; as root, installs Debian's Maven if there is none
#   object_stores.sh stop     ends what `start` started, by its own process id, and removes the data
#   object_stores.sh check    says one sentence, and fails, if a part does not run
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly HOME_DIR="$PWD/.object_stores"
readonly ADDRESSES="$HOME_DIR/addresses"   # read by the tests; has the key, so only the owner may read it
readonly PARTS="namenode datanode s3"
readonly BUCKET=windowing

say() { printf 'object stores: %s\n' "$*"; }
stop() { printf 'object stores: %s\n' "$*" >&2; exit 1; }

free_port() { .venv/bin/python -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
java_home() { cat .venv/java-home; }

# Whether a part runs: its process is there, and is the Java that was started here.
runs() {
    local pid
    pid="$(cat "$HOME_DIR/$1.pid" 2>/dev/null)" && grep -qzxF -- "-Dwindowing.part=$HOME_DIR/$1" "/proc/$pid/cmdline" 2>/dev/null
}

# Starts a class as a part, with a class path; what follows goes to it.
launch() {
    local name="$1" class_path="$2"
    shift 2
    setsid "$(java_home)/bin/java" -Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 "-Dwindowing.part=$HOME_DIR/$name" \
        -cp "$class_path" "$@" >"$HOME_DIR/$name.log" 2>&1 </dev/null &
    echo $! >"$HOME_DIR/$name.pid"
}

# Waits until a part listens on a port.
await() {
    local name="$1" port="$2"
    for _ in {1..600}; do
        if runs "$name" && (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then return; fi
        kill -0 "$(cat "$HOME_DIR/$name.pid")" 2>/dev/null || break
        sleep 0.1
    done
    stop "$name did not start: see $HOME_DIR/$name.log"
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
    local conf="$HOME_DIR/hadoop" port web jars data
    port="$(free_port)" web="$(free_port)" data="$(free_port)"
    jars="$(.venv/bin/python -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')/jars"
    mkdir -p "$conf"
    properties fs.defaultFS "hdfs://127.0.0.1:$port" hadoop.tmp.dir "$HOME_DIR/hdfs" >"$conf/core-site.xml"
    properties dfs.replication 1 dfs.namenode.http-address "127.0.0.1:$web" dfs.datanode.address "127.0.0.1:$data" \
        dfs.datanode.http.address 127.0.0.1:0 dfs.datanode.ipc.address 127.0.0.1:0 dfs.datanode.hostname 127.0.0.1 \
        dfs.namenode.datanode.registration.ip-hostname-check false dfs.namenode.safemode.extension 0 >"$conf/hdfs-site.xml"
    local class_path="$conf:$HOME_DIR/jars/hdfs/*:$jars/*" server=org.apache.hadoop.hdfs.server
    "$(java_home)/bin/java" -Xmx256m -cp "$class_path" $server.namenode.NameNode -format -nonInteractive >"$HOME_DIR/format.log" 2>&1 ||
        stop "HDFS cannot be made: see $HOME_DIR/format.log"
    launch namenode "$class_path" $server.namenode.NameNode
    await namenode "$port"
    launch datanode "$class_path" $server.datanode.DataNode
    await datanode "$data"
    echo "WINDOWING_HDFS_URL=hdfs://127.0.0.1:$port" >"$HOME_DIR/hdfs.address"
    say "HDFS runs on 127.0.0.1:$port"
}

start_s3() {
    local port key
    port="$(free_port)" key="$(.venv/bin/python -c 'import secrets; print(secrets.token_hex(16))')"
    printf '%s\n' "s3proxy.endpoint=http://127.0.0.1:$port" "s3proxy.authorization=aws-v2-or-v4" "s3proxy.identity=windowing" \
        "s3proxy.credential=$key" "jclouds.provider=transient" "jclouds.identity=none" "jclouds.credential=none" >"$HOME_DIR/s3.conf"
    echo '<configuration><root level="OFF"/></configuration>' >"$HOME_DIR/logback.xml"  # by default it logs each byte: gigabytes
    launch s3 "$HOME_DIR/jars/s3/*" "-Dlogback.configurationFile=$HOME_DIR/logback.xml" org.gaul.s3proxy.Main --properties "$HOME_DIR/s3.conf"
    await s3 "$port"
    AWS_ACCESS_KEY_ID=windowing AWS_SECRET_ACCESS_KEY="$key" .venv/bin/python - "127.0.0.1:$port" "$BUCKET" <<'PYTHON' ||
import sys
from pyarrow.fs import S3FileSystem
S3FileSystem(endpoint_override=sys.argv[1], scheme="http", region="us-east-1", allow_bucket_creation=True).create_dir(sys.argv[2])
PYTHON
        stop "the bucket cannot be made: see $HOME_DIR/s3.log"
    echo "WINDOWING_S3_URL=s3://windowing:$key@127.0.0.1:$port/$BUCKET" >"$HOME_DIR/s3.address"
    say "S3 runs on 127.0.0.1:$port"
}

start() {
    [[ -x .venv/bin/python ]] || stop ".venv is missing: run make setup first."
    if ! command -v mvn >/dev/null; then
        [[ "$(id -u)" == 0 && -e /etc/debian_version ]] || stop "Maven is missing: install it (Debian, Ubuntu: apt-get install maven)."
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends maven >/dev/null
    fi
    umask 077
    if check 2>/dev/null; then return; fi
    stop_all
    mkdir -p "$HOME_DIR"
    say "Maven copies HDFS, a server of S3, and Spark's way to S3"
    for what in hdfs s3 s3a; do copy "$what"; done
    start_hdfs
    start_s3
    cat "$HOME_DIR"/*.address >"$ADDRESSES"
}

stop_all() {
    local name pid
    for name in $PARTS; do
        if runs "$name"; then
            pid="$(cat "$HOME_DIR/$name.pid")"
            kill "$pid"
            for _ in {1..100}; do [[ -e "/proc/$pid" ]] || break; sleep 0.1; done
            say "$name is stopped"
        fi
    done
    rm -rf "$HOME_DIR"
}

# In a shell of its own, so that `start` can ask.
check() (
    missing=()
    for name in $PARTS; do runs "$name" || missing+=("$name"); done
    ((${#missing[@]} == 0)) || stop "not running: ${missing[*]}; start them with make object-stores."
)

case "${1:-}" in
start) start ;;
stop) stop_all ;;
check) check ;;
*) stop "say start, stop or check." ;;
esac
