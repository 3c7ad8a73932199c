# Private database servers for the tests, to be sourced by bash.
#
#   . tests/servers.sh
#   trap stop_all EXIT
#   start_postgres && start_mariadb && start_etcd && start_redis
#   cargo test ...            # reads FENCING_TEST_POSTGRES, _MYSQL, _ETCD and _REDIS
#
# Each server gets a data folder of its own under a temporary folder and a free port on the
# loopback. They run with the durable settings they come with: the tests look at those. Nothing of
# an installed and running server is touched.

SERVERS_DIR=${SERVERS_DIR:-}
SERVERS_PIDS=()

# The folder everything lies in, made when it is first needed.
servers_dir() {
    if [ -z "$SERVERS_DIR" ]; then
        SERVERS_DIR=$(mktemp -d "${TMPDIR:-/tmp}/fencing-servers.XXXXXX") || return 1
        chmod 755 "$SERVERS_DIR"
    fi
}

# The first program of these names that is installed: on the path, or where Debian hides those of
# PostgreSQL.
servers_find() {
    local name found
    for name in "$@"; do
        found=$(command -v "$name") && { echo "$found"; return 0; }
        found=$(ls -d /usr/lib/postgresql/*/bin/"$name" /usr/sbin/"$name" 2>/dev/null | sort -V | tail -n 1)
        [ -n "$found" ] && { echo "$found"; return 0; }
    done
    echo "not installed: $*" >&2
    return 1
}

# Becomes a command, as a user without privileges when we are root: neither server runs as root.
# To be called in a subshell.
servers_as() {
    local user=$1
    shift
    if [ "$(id -u)" -eq 0 ]; then
        exec setpriv --reuid="$user" --regid="$(id -g "$user")" --clear-groups -- "$@"
    else
        exec "$@"
    fi
}

# The first of these users that exists, `nobody` at the last.
servers_user() {
    local user
    for user in "$@"; do
        id -u "$user" >/dev/null 2>&1 && { echo "$user"; return 0; }
    done
    echo nobody
}

# A port nobody listens on. Another process may still take it; then the server does not start and
# the next port is tried.
servers_port() {
    local port
    while :; do
        port=$((20000 + (RANDOM * 32768 + RANDOM) % 40000))
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port"; return 0; }
    done
}

# Waits until a command succeeds, a minute at most, or the process is gone.
servers_wait() {
    local pid=$1 tries=0
    shift
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        kill -0 "$pid" 2>/dev/null || return 1
        [ "$tries" -lt 300 ] || return 1
        sleep 0.2
    done
}

# Starts PostgreSQL (15 or newer) and exports FENCING_TEST_POSTGRES.
start_postgres() {
    local initdb postgres ready user data port pid try
    initdb=$(servers_find initdb) && postgres=$(servers_find postgres) || return 1
    ready=$(servers_find pg_isready) || return 1
    user=$(servers_user postgres nobody)
    servers_dir || return 1
    data=$SERVERS_DIR/postgres
    mkdir -p "$data" && { [ "$(id -u)" -ne 0 ] || chown "$user" "$data"; } || return 1
    (cd / && servers_as "$user" "$initdb" -D "$data/data" -U postgres -A trust -E UTF8 \
        --locale=C) >"$SERVERS_DIR/initdb.log" 2>&1 || { cat "$SERVERS_DIR/initdb.log" >&2; return 1; }
    # Whoever asks for the database of this name needs a password, whether or not it is there.
    sed -i '1i host passworded all 127.0.0.1/32 scram-sha-256' "$data/data/pg_hba.conf" || return 1
    for try in 1 2 3; do
        port=$(servers_port)
        (cd / && servers_as "$user" "$postgres" -D "$data/data" -p "$port" -k "$data" \
            -c listen_addresses=127.0.0.1 -c max_connections=500 -c max_prepared_transactions=10 \
            -c deadlock_timeout=200ms) >"$SERVERS_DIR/postgres.log" 2>&1 &
        pid=$!
        if servers_wait "$pid" "$ready" -q -h 127.0.0.1 -p "$port"; then
            SERVERS_PIDS+=("$pid")
            export FENCING_TEST_POSTGRES="postgres://postgres@127.0.0.1:$port/postgres"
            return 0
        fi
        kill "$pid" 2>/dev/null
        wait "$pid" 2>/dev/null
    done
    tail -n 20 "$SERVERS_DIR/postgres.log" >&2
    return 1
}

# Starts MariaDB (10.11 or newer), or MySQL where that is what is installed, and exports
# FENCING_TEST_MYSQL.
start_mariadb() {
    local server install admin user data port pid try
    server=$(servers_find mariadbd mysqld) && admin=$(servers_find mariadb-admin mysqladmin) || return 1
    user=$(servers_user mysql nobody)
    servers_dir || return 1
    data=$SERVERS_DIR/mariadb
    mkdir -p "$data" && { [ "$(id -u)" -ne 0 ] || chown "$user" "$data"; } || return 1
    if install=$(servers_find mariadb-install-db 2>/dev/null); then
        (cd / && servers_as "$user" "$install" --no-defaults --datadir="$data/data" --skip-test-db \
            --auth-root-authentication-method=normal) >"$SERVERS_DIR/install.log" 2>&1
    else
        (cd / && servers_as "$user" "$server" --no-defaults --initialize-insecure \
            --datadir="$data/data") >"$SERVERS_DIR/install.log" 2>&1
    fi || { cat "$SERVERS_DIR/install.log" >&2; return 1; }
    for try in 1 2 3; do
        port=$(servers_port)
        # A zone in which the clocks go back in October, whatever that of this machine is.
        (cd / && TZ=CET-1CEST,M3.5.0,M10.5.0/3 servers_as "$user" "$server" --no-defaults --datadir="$data/data" --port="$port" \
            --socket="$data/socket" --pid-file="$data/pid" --bind-address=127.0.0.1 \
            --max-connections=1000) >"$SERVERS_DIR/mariadb.log" 2>&1 &
        pid=$!
        if servers_wait "$pid" "$admin" --no-defaults -h 127.0.0.1 -P "$port" -u root ping; then
            SERVERS_PIDS+=("$pid")
            export FENCING_TEST_MYSQL="mysql://root@127.0.0.1:$port/mysql"
            return 0
        fi
        kill "$pid" 2>/dev/null
        wait "$pid" 2>/dev/null
    done
    tail -n 20 "$SERVERS_DIR/mariadb.log" >&2
    return 1
}

# Starts etcd (3.4 or newer) and exports FENCING_TEST_ETCD.
start_etcd() {
    local etcd user data port peer pid try
    etcd=$(servers_find etcd) || return 1
    user=$(servers_user etcd nobody)
    servers_dir || return 1
    data=$SERVERS_DIR/etcd
    mkdir -p "$data" && { [ "$(id -u)" -ne 0 ] || chown "$user" "$data"; } || return 1
    for try in 1 2 3; do
        port=$(servers_port) && peer=$(servers_port)
        # The address of its peers is part of its data, so each try has a folder of its own.
        (cd / && servers_as "$user" "$etcd" --data-dir "$data/$try" \
            --listen-client-urls "http://127.0.0.1:$port" \
            --advertise-client-urls "http://127.0.0.1:$port" \
            --listen-peer-urls "http://127.0.0.1:$peer" \
            --initial-advertise-peer-urls "http://127.0.0.1:$peer" \
            --initial-cluster "default=http://127.0.0.1:$peer") >"$SERVERS_DIR/etcd.log" 2>&1 &
        pid=$!
        if servers_wait "$pid" servers_etcd_is_healthy "$port"; then
            SERVERS_PIDS+=("$pid")
            export FENCING_TEST_ETCD="http://127.0.0.1:$port"
            return 0
        fi
        kill "$pid" 2>/dev/null
        wait "$pid" 2>/dev/null
    done
    tail -n 20 "$SERVERS_DIR/etcd.log" >&2
    return 1
}

servers_etcd_is_healthy() {
    curl -s --max-time 2 "http://127.0.0.1:$1/health" | grep -q '"health": *"true"'
}

# Starts Redis (6 or newer) and exports FENCING_TEST_REDIS. It writes down each command before it
# answers: a counter of tokens must not go back.
start_redis() {
    local redis user data port pid try
    redis=$(servers_find redis-server) || return 1
    user=$(servers_user redis nobody)
    servers_dir || return 1
    data=$SERVERS_DIR/redis
    mkdir -p "$data" && { [ "$(id -u)" -ne 0 ] || chown "$user" "$data"; } || return 1
    for try in 1 2 3; do
        port=$(servers_port)
        (cd / && servers_as "$user" "$redis" --bind 127.0.0.1 --port "$port" --dir "$data" \
            --save '' --appendonly yes --appendfsync always) >"$SERVERS_DIR/redis.log" 2>&1 &
        pid=$!
        if servers_wait "$pid" servers_redis_answers "$port"; then
            SERVERS_PIDS+=("$pid")
            export FENCING_TEST_REDIS="redis://127.0.0.1:$port"
            return 0
        fi
        kill "$pid" 2>/dev/null
        wait "$pid" 2>/dev/null
    done
    tail -n 20 "$SERVERS_DIR/redis.log" >&2
    return 1
}

servers_redis_answers() {
    local answer
    exec 3<>"/dev/tcp/127.0.0.1/$1" || return 1
    printf 'PING\r\n' >&3
    read -r -t 2 answer <&3
    exec 3>&-
    [ "${answer%$'\r'}" = +PONG ]
}

# Stops what was started here, and removes its data.
stop_all() {
    local pid
    for pid in "${SERVERS_PIDS[@]}"; do
        # SIGINT makes PostgreSQL end without waiting for clients; MariaDB ignores it.
        kill -INT "$pid" 2>/dev/null
        kill -TERM "$pid" 2>/dev/null
    done
    for pid in "${SERVERS_PIDS[@]}"; do
        wait "$pid" 2>/dev/null
    done
    SERVERS_PIDS=()
    [ -z "$SERVERS_DIR" ] || rm -rf "$SERVERS_DIR"
    SERVERS_DIR=
}
