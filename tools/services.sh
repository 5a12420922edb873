#!/usr/bin/env bash
# Real servers for the tests marked `services`: PostgreSQL and Redis, on loopback, with their own data in .services/.
#   services.sh start    finds the servers, or installs Debian's packages as root; starts what does not run
#   services.sh stop     ends what `start` started, by its own process id, and removes the data
#   services.sh check    says one sentence, and fails, if one of them does not run
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly HOME_DIR="$PWD/.services"
readonly ADDRESSES="$HOME_DIR/addresses"   # read by the tests; has the passwords, so only the owner may read it
readonly REDIS="$HOME_DIR/redis"
readonly POSTGRES="$HOME_DIR/postgres"

say() { printf 'services: %s\n' "$*"; }
stop() { printf 'services: %s\n' "$*" >&2; exit 1; }

# ---------------------------------------------------------------- looking, changing nothing

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

postgres_runs() { [[ -n "$(postgres_bin)" && -d "$POSTGRES/data" ]] && as_postgres pg_ctl status -D "$POSTGRES/data" >/dev/null; }

can_apt() { [[ "$(id -u)" == 0 && -e /etc/debian_version ]] && command -v apt-get >/dev/null; }

free_port() { .venv/bin/python -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

secret() { .venv/bin/python -c 'import secrets; print(secrets.token_hex(16))'; }

# PostgreSQL refuses to run as root: then it runs as the user that Debian's package makes for it.
as_postgres() {
    local command="$1"
    shift
    if [[ "$(id -u)" == 0 ]]; then
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
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $2 >/dev/null
}

install_postgres() {
    if [[ ! -e /etc/postgresql-common/createcluster.conf ]]; then
        mkdir -p /etc/postgresql-common
        echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
    fi
    install PostgreSQL "postgresql"
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
    local port password owner
    port="$(free_port)" password="$(secret)"
    if [[ "$(id -u)" == 0 ]]; then owner=postgres; else owner="$(id -un)"; fi
    rm -rf "$POSTGRES"
    mkdir -p "$POSTGRES"
    echo "$password" >"$POSTGRES/password"
    chown -R "$owner" "$POSTGRES"
    if [[ "$(id -u)" == 0 ]]; then
        runuser -u postgres -- test -r "$POSTGRES/password" ||
            stop "the user postgres cannot enter $POSTGRES: give the folders above it the right x for others."
    fi
    as_postgres initdb -D "$POSTGRES/data" -U windowing --pwfile="$POSTGRES/password" --auth=scram-sha-256 --no-sync \
        --encoding=UTF8 --locale=C >/dev/null
    printf '%s\n' "listen_addresses = '127.0.0.1'" "port = $port" "unix_socket_directories = ''" "max_connections = 200" \
        >>"$POSTGRES/data/postgresql.conf"
    as_postgres pg_ctl start -w -D "$POSTGRES/data" -l "$POSTGRES/log" >/dev/null ||
        stop "PostgreSQL did not start: see $POSTGRES/log"
    echo "WINDOWING_POSTGRES_URL=postgresql://windowing:$password@127.0.0.1:$port/postgres" >"$POSTGRES/address"
    say "PostgreSQL runs on 127.0.0.1:$port"
}

# ---------------------------------------------------------------- the three commands

start() {
    [[ -x .venv/bin/python ]] || stop ".venv is missing: run make setup first."
    umask 077
    mkdir -p "$HOME_DIR"
    chmod 711 "$HOME_DIR"
    command -v redis-server >/dev/null || install Redis "redis-server"
    [[ -n "$(postgres_bin)" ]] || install_postgres
    redis_runs || start_redis
    postgres_runs || start_postgres
    cat "$REDIS/address" "$POSTGRES/address" >"$ADDRESSES"
}

stop_all() {
    if postgres_runs; then
        as_postgres pg_ctl stop -w -m fast -D "$POSTGRES/data" >/dev/null
        say "PostgreSQL is stopped"
    fi
    if redis_runs; then
        local pid
        pid="$(cat "$REDIS/pid")"
        kill "$pid"
        for _ in {1..100}; do [[ -e "/proc/$pid" ]] || break; sleep 0.1; done
        say "Redis is stopped"
    fi
    rm -rf "$HOME_DIR"
}

check() {
    local missing=()
    redis_runs || missing+=("Redis")
    postgres_runs || missing+=("PostgreSQL")
    ((${#missing[@]} == 0)) || stop "not running: $(IFS=,; sed 's/,/ and /' <<<"${missing[*]}"); start them with make services."
}

case "${1:-}" in
start) start ;;
stop) stop_all ;;
check) check ;;
*) stop "say start, stop or check." ;;
esac
