#!/usr/bin/env bash
# Real servers for the tests marked `services`: PostgreSQL, Redis, RabbitMQ and Kafka, on loopback, with their own data in .services/.
#   services.sh start    finds the servers, or installs Debian's packages as root; Kafka, and Spark's connector to it, are copied
#                        from Maven Central by Maven, which compares the checksums; starts what does not run
#   services.sh stop     ends what `start` started, by its own process id, and removes the data
#   services.sh check    says one sentence, and fails, if one of them does not run
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly HOME_DIR="$PWD/.services"
readonly ADDRESSES="$HOME_DIR/addresses"   # read by the tests; has the passwords, so only the owner may read it
readonly REDIS="$HOME_DIR/redis"
readonly KAFKA="$HOME_DIR/kafka"
readonly RABBITMQ="$HOME_DIR/rabbitmq"
readonly RABBITMQ_BIN=/usr/lib/rabbitmq/bin

say() { printf 'services: %s\n' "$*"; }
stop() { printf 'services: %s\n' "$*" >&2; exit 1; }

# ---------------------------------------------------------------- looking, changing nothing

is_root() { [[ "$(id -u)" == 0 ]]; }

# PostgreSQL's folder: beside Redis's, or where the user postgres can enter if the folders above this one keep him out.
postgres_home() {
    if is_root && id postgres >/dev/null 2>&1 && ! runuser -u postgres -- test -x "$PWD"; then
        echo "/var/tmp/windowing-postgres-$(pwd | cksum | cut -d ' ' -f 1)"
    else
        echo "$HOME_DIR/postgres"
    fi
}

# The folder of PostgreSQL's commands: Debian keeps the servers out of the PATH, one folder for each version.
postgres_bin() {
    local newest
    newest="$(find /usr/lib/postgresql -mindepth 2 -maxdepth 2 -name bin 2>/dev/null | sort -V | tail -n 1)"
    if [[ -x "$newest/postgres" && -x "$newest/initdb" ]]; then echo "$newest"; return; fi
    if command -v postgres initdb pg_ctl >/dev/null; then dirname "$(readlink -f "$(command -v initdb)")"; fi
}

redis_runs() {
    local pid
    pid="$(cat "$REDIS/pid" 2>/dev/null)" && [[ "$(cat "/proc/$pid/comm" 2>/dev/null)" == redis-server ]]
}

postgres_runs() {
    [[ -n "$(postgres_bin)" && -d "$(postgres_home)/data" ]] &&
        as_postgres pg_ctl status -D "$(postgres_home)/data" >/dev/null
}

kafka_runs() {
    local pid
    pid="$(cat "$KAFKA/pid" 2>/dev/null)" && grep -qzF "$KAFKA/conf" "/proc/$pid/cmdline" 2>/dev/null
}

rabbitmq_runs() {
    local pid
    pid="$(cat "$RABBITMQ/pid" 2>/dev/null)" && grep -qzF "$RABBITMQ" "/proc/$pid/cmdline" 2>/dev/null
}

can_apt() { is_root && [[ -e /etc/debian_version ]] && command -v apt-get >/dev/null; }

# A free port below those that the system gives to connections: while a server is killed and started again in a test, a client that
# tries to reach it could be given its port.
free_port() {
    .venv/bin/python - <<'PYTHON'
import random, socket
while True:
    try:
        with socket.create_server(("127.0.0.1", random.randrange(20_000, 32_000))) as server:
            print(server.getsockname()[1])
            break
    except OSError:
        continue
PYTHON
}

secret() { .venv/bin/python -c 'import secrets; print(secrets.token_hex(16))'; }

# PostgreSQL refuses to run as root: then it runs as the user that Debian's package makes for it.
as_postgres() {
    local command="$1"
    shift
    if is_root; then
        (cd / && runuser -u postgres -- "$(postgres_bin)/$command" "$@")
    else
        "$(postgres_bin)/$command" "$@"
    fi
}

# ---------------------------------------------------------------- installing

# Debian starts a server when it installs one, on the usual port and with its own data: not here.
install() {
    can_apt || stop "$1 is missing: install it (Debian, Ubuntu: apt-get install $2)."
    local policy=/usr/sbin/policy-rc.d
    say "apt-get install $2"
    if [[ ! -e "$policy" ]]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod +x "$policy"
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$2" >/dev/null
}

# ---------------------------------------------------------------- starting

start_redis() {
    local port password
    port="$(free_port)" password="$(secret)"
    rm -rf "$REDIS"
    mkdir -p "$REDIS"
    printf '%s\n' "bind 127.0.0.1" "port $port" "requirepass $password" "dir $REDIS" "pidfile $REDIS/pid" "logfile $REDIS/log" \
        "daemonize yes" "appendonly yes" "appendfsync always" "maxmemory-policy noeviction" 'save ""' >"$REDIS/conf"
    redis-server "$REDIS/conf" >/dev/null
    echo "WINDOWING_REDIS_URL=redis://:$password@127.0.0.1:$port/0" >"$REDIS/address"
    for _ in {1..100}; do
        if redis_runs && (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            say "Redis runs on 127.0.0.1:$port"
            return
        fi
        sleep 0.1
    done
    stop "Redis did not start: see $REDIS/log"
}

start_postgres() {
    local port password home
    port="$(free_port)" password="$(secret)" home="$(postgres_home)"
    rm -rf "$home"
    mkdir "$home"
    echo "$password" >"$home/password"
    if is_root; then chown -R postgres "$home"; fi
    as_postgres initdb -D "$home/data" -U windowing --pwfile="$home/password" --auth=scram-sha-256 --no-sync \
        --encoding=UTF8 --locale=C >/dev/null
    printf '%s\n' "listen_addresses = '127.0.0.1'" "port = $port" "unix_socket_directories = ''" "max_connections = 200" \
        >>"$home/data/postgresql.conf"
    as_postgres pg_ctl start -w -D "$home/data" -l "$home/log" >/dev/null || stop "PostgreSQL did not start: see $home/log"
    echo "WINDOWING_POSTGRES_URL=postgresql://windowing:$password@127.0.0.1:$port/postgres" >"$home/address"
    say "PostgreSQL runs on 127.0.0.1:$port"
}

# What the node has at its start: the user of the tests, who may do everything, and users of the same password who lack one right.
rabbitmq_users() {
    PASSWORD="$1" .venv/bin/python - <<'PYTHON'
import base64, hashlib, json, os, secrets
def user(name, tags):
    salt = secrets.token_bytes(4)
    hashed = base64.b64encode(salt + hashlib.sha256(salt + os.environ["PASSWORD"].encode()).digest()).decode()
    return {"name": name, "password_hash": hashed, "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": tags}
rights = ("configure", "write", "read")
def allowed(name, lacks):
    return {"user": name, "vhost": "/", **{right: "" if right == lacks else ".*" for right in rights}}
lacking = {f"no-{right}": right for right in rights}
users = [user("windowing", "administrator"), *(user(name, "") for name in lacking)]
permissions = [allowed("windowing", None), *(allowed(*each) for each in lacking.items())]
print(json.dumps({"vhosts": [{"name": "/"}], "users": users, "permissions": permissions}))
PYTHON
}

# A node with a name, a cookie and a port mapper (epmd) of its own.
start_rabbitmq() {
    local port dist password
    port="$(free_port)" dist="$(free_port)" password="$(secret)"
    rm -rf "$RABBITMQ"
    mkdir -p "$RABBITMQ"
    free_port >"$RABBITMQ/epmd"
    rabbitmq_users "$password" >"$RABBITMQ/users.json"
    printf '%s\n' "listeners.tcp.default = 127.0.0.1:$port" "load_definitions = $RABBITMQ/users.json" \
        "log.file.level = warning" >"$RABBITMQ/rabbitmq.conf"
    echo "[]." >"$RABBITMQ/plugins"
    HOME="$RABBITMQ" RABBITMQ_NODENAME="windowing-$(pwd | cksum | cut -d ' ' -f 1)@localhost" RABBITMQ_DIST_PORT="$dist" \
        ERL_EPMD_PORT="$(cat "$RABBITMQ/epmd")" ERL_EPMD_ADDRESS=127.0.0.1 RABBITMQ_PID_FILE="$RABBITMQ/pid" \
        RABBITMQ_MNESIA_BASE="$RABBITMQ/data" RABBITMQ_LOG_BASE="$RABBITMQ/log" RABBITMQ_CONFIG_FILE="$RABBITMQ/rabbitmq" \
        RABBITMQ_ENABLED_PLUGINS_FILE="$RABBITMQ/plugins" \
        RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-kernel inet_dist_use_interface {127,0,0,1}" \
        setsid "$RABBITMQ_BIN/rabbitmq-server" >"$RABBITMQ/out" 2>&1 </dev/null &
    echo "WINDOWING_RABBITMQ_URL=amqp://windowing:$password@127.0.0.1:$port/%2F" >"$RABBITMQ/address"
    for _ in {1..600}; do
        if rabbitmq_runs && (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            say "RabbitMQ runs on 127.0.0.1:$port"
            return
        fi
        sleep 0.1
    done
    stop "RabbitMQ did not start: see $RABBITMQ/out"
}

# One node in KRaft mode. Clients have to give a password; what the node says to itself is on ports of their own. The user of the
# tests may do everything; "limited", of the same password, may do what a test allows by ACLs.
start_kafka() {
    local port inner controller password java
    java="$(cat .venv/java-home)/bin/java"
    port="$(free_port)" inner="$(free_port)" controller="$(free_port)" password="$(secret)"
    rm -rf "$KAFKA"
    mkdir -p "$KAFKA"
    say "Maven copies Kafka and Spark's connector"
    for what in broker connector; do
        JAVA_HOME="$(cat .venv/java-home)" mvn -q -B -f "tools/kafka/$what.xml" dependency:copy-dependencies \
            -DincludeScope=runtime -DoutputDirectory="$KAFKA/$what" >"$KAFKA/maven.log" 2>&1 ||
            stop "Maven cannot copy Kafka: see $KAFKA/maven.log"
    done
    printf '%s\n' "process.roles=broker,controller" "node.id=1" "controller.quorum.voters=1@127.0.0.1:$controller" \
        "listeners=CLIENT://127.0.0.1:$port,INNER://127.0.0.1:$inner,CONTROLLER://127.0.0.1:$controller" \
        "advertised.listeners=CLIENT://127.0.0.1:$port,INNER://127.0.0.1:$inner" \
        "controller.listener.names=CONTROLLER" "inter.broker.listener.name=INNER" \
        "listener.security.protocol.map=CLIENT:SASL_PLAINTEXT,INNER:PLAINTEXT,CONTROLLER:PLAINTEXT" \
        "listener.name.client.sasl.enabled.mechanisms=PLAIN" \
        "listener.name.client.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_windowing=\"$password\" user_limited=\"$password\";" \
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer" "super.users=User:windowing;User:ANONYMOUS" \
        "log.dirs=$KAFKA/data" "auto.create.topics.enable=false" "group.initial.rebalance.delay.ms=0" \
        "offsets.topic.num.partitions=1" "offsets.topic.replication.factor=1" "transaction.state.log.num.partitions=1" \
        "transaction.state.log.replication.factor=1" "transaction.state.log.min.isr=1" >"$KAFKA/conf"
    "$java" -Xmx128m -cp "$KAFKA/broker/*" kafka.tools.StorageTool format -t "$(secret | cut -c 1-22)" -c "$KAFKA/conf" \
        >"$KAFKA/log" 2>&1 || stop "Kafka's folder cannot be made: see $KAFKA/log"
    setsid "$java" -Xmx384m -XX:+UseSerialGC -cp "$KAFKA/broker/*" kafka.Kafka "$KAFKA/conf" >>"$KAFKA/log" 2>&1 </dev/null &
    echo $! >"$KAFKA/pid"
    echo "WINDOWING_KAFKA_URL=kafka://windowing:$password@127.0.0.1:$port" >"$KAFKA/address"
    for _ in {1..600}; do
        if kafka_runs && (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            say "Kafka runs on 127.0.0.1:$port"
            return
        fi
        sleep 0.1
    done
    stop "Kafka did not start: see $KAFKA/log"
}

# ---------------------------------------------------------------- the three commands

start() {
    [[ -x .venv/bin/python ]] || stop ".venv is missing: run make setup first."
    command -v redis-server >/dev/null || install Redis redis-server
    [[ -n "$(postgres_bin)" ]] || install PostgreSQL postgresql
    [[ -x "$RABBITMQ_BIN/rabbitmq-server" ]] || install RabbitMQ rabbitmq-server
    command -v mvn >/dev/null || install Maven maven
    umask 077
    mkdir -p "$HOME_DIR"
    chmod 711 "$HOME_DIR"
    redis_runs || start_redis
    postgres_runs || start_postgres
    rabbitmq_runs || start_rabbitmq
    kafka_runs || start_kafka
    cat "$REDIS/address" "$(postgres_home)/address" "$RABBITMQ/address" "$KAFKA/address" >"$ADDRESSES"
}

stop_all() {
    if postgres_runs; then
        as_postgres pg_ctl stop -w -m fast -D "$(postgres_home)/data" >/dev/null
        say "PostgreSQL is stopped"
    fi
    local pid
    if redis_runs; then
        pid="$(cat "$REDIS/pid")"
        kill "$pid"
        for _ in {1..100}; do [[ -e "/proc/$pid" ]] || break; sleep 0.1; done
        say "Redis is stopped"
    fi
    if rabbitmq_runs; then
        pid="$(cat "$RABBITMQ/pid")"
        kill "$pid"
        for _ in {1..300}; do [[ -e "/proc/$pid" ]] || break; sleep 0.1; done
        ERL_EPMD_PORT="$(cat "$RABBITMQ/epmd")" epmd -kill >/dev/null || true
        say "RabbitMQ is stopped"
    fi
    if kafka_runs; then
        pid="$(cat "$KAFKA/pid")"
        kill -9 "$pid"
        for _ in {1..100}; do [[ -e "/proc/$pid" ]] || break; sleep 0.1; done
        say "Kafka is stopped"
    fi
    rm -rf "$(postgres_home)" "$HOME_DIR"
}

check() {
    local missing=()
    redis_runs || missing+=("Redis")
    postgres_runs || missing+=("PostgreSQL")
    rabbitmq_runs || missing+=("RabbitMQ")
    kafka_runs || missing+=("Kafka")
    ((${#missing[@]} == 0)) || stop "not running: $(IFS=,; sed 's/,/ and /' <<<"${missing[*]}"); start them with make services."
}

case "${1:-}" in
start) start ;;
stop) stop_all ;;
check) check ;;
*) stop "say start, stop or check." ;;
esac
