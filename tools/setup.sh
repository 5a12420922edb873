#!/usr/bin/env bash
# Makes .venv with everything that demo and tests need, and sees to a Java >= 17. Does nothing when all is there.
#   PYTHON=python3.12 bash tools/setup.sh    takes that Python instead of the first one found
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly EXTRAS="spark,examples,dev"
readonly STAMP=.venv/.windowing-setup     # written last: where it is missing, .venv is half-built
readonly JAVA_HOME_FILE=.venv/java-home   # read by the Makefile, so that Spark starts the Java found here

say() { printf 'setup: %s\n' "$*"; }
stop() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# ---------------------------------------------------------------- looking, changing nothing

python_is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
python_has_ensurepip() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

# The first Python >= 3.11 that can make a venv; failing that, the first Python >= 3.11.
find_python() {
    local candidate fallback=""
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3.14 python3}; do
        python_is_new_enough "$candidate" || continue
        if python_has_ensurepip "$candidate"; then echo "$candidate"; return; fi
        fallback="${fallback:-$candidate}"
    done
    echo "$fallback"
}

# The major version of a java command: 17 for "17.0.15", 21 for "21" or "21-ea", 8 for "1.8.0_402"; 0 if it does not run.
java_major() {
    local answer version
    answer="$("$1" -version 2>&1)" || { echo 0; return; }
    [[ "$answer" =~ version\ \"([^\"]+)\" ]] || { echo 0; return; }
    version="${BASH_REMATCH[1]#1.}"
    [[ "$version" =~ ^[0-9]+ ]] && echo "${BASH_REMATCH[0]}" || echo 0
}

# The home of the first Java >= 17: JAVA_HOME, then PATH, then where Debian and others keep them.
find_java_home() {
    local java
    for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java || true)" /usr/lib/jvm/*/bin/java; do
        if [[ -x "$java" ]] && (($(java_major "$java") >= 17)); then
            java_home_of "$java"
            return
        fi
    done
}

# Asked of Java itself: the command may be a link, or a launcher script that lies elsewhere.
java_home_of() {
    "$1" -XshowSettings:properties -version 2>&1 | sed -n 's/^ *java\.home = //p'
}

can_apt() { [[ "$(id -u)" == 0 && -e /etc/debian_version ]] && command -v apt-get >/dev/null; }

venv_runs() { .venv/bin/python -c 'import pip' 2>/dev/null; }

# What .venv was built from: this place (its scripts hold absolute paths), this script, this pyproject.toml.
wanted_stamp() { pwd; cksum <tools/setup.sh; cksum <pyproject.toml; }

all_there() {
    [[ -f "$STAMP" && "$(cat "$STAMP")" == "$(wanted_stamp)" ]] && venv_runs &&
        [[ -x "$(cat "$JAVA_HOME_FILE" 2>/dev/null)/bin/java" ]]
}

# ---------------------------------------------------------------- changing the machine

apt_update() { say "apt-get update"; apt-get update -qq; }

apt_install() {
    say "apt-get install $*"
    mkdir -p /usr/share/man/man1  # slim images leave it out, and the JRE's installation fails without it
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# The major part of the version apt would install: 17 for 17.0.15+6-1~deb12u1 and for 2:1.17-74; nothing if not offered.
apt_offers() {
    apt-cache policy "$1" | sed -nE 's/^ *Candidate: ([0-9]+:)?(1\.)?([0-9]+).*/\3/p'
}

install_java() {
    local offered
    if [[ -n "$(apt_offers openjdk-17-jre-headless)" ]]; then
        apt_install openjdk-17-jre-headless
        return
    fi
    offered="$(apt_offers default-jre-headless)"
    ((${offered:-0} >= 17)) || stop "apt-get offers no Java >= 17: install one and set JAVA_HOME to it."
    apt_install default-jre-headless
}

# The package that brings `venv` and `ensurepip` to a Debian or Ubuntu Python, e.g. python3.12-venv.
venv_package() { "$1" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'; }

install_venv_module() {
    apt_install "$(venv_package "$1")"
    python_has_ensurepip "$1" || stop "$1 still cannot make a venv: set PYTHON to a Python >= 3.11 that can."
}

# Packages are added to a whole .venv in place; a half-built, moved or broken one is made anew.
build_venv() {
    if [[ ! -f "$STAMP" || "$(head -n 1 "$STAMP")" != "$(pwd)" ]] || ! venv_runs || ! python_is_new_enough .venv/bin/python
    then
        say "making .venv with $("$1" -V)"
        "$1" -m venv --clear .venv
    fi
    rm -f "$STAMP"
    say "pip install --editable .[$EXTRAS]"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --use-pep517 --editable ".[$EXTRAS]"
}

# ---------------------------------------------------------------- main

main() {
    local python java_home
    if all_there; then say ".venv is up to date"; return; fi

    python="$(find_python)"
    java_home="$(find_java_home)"
    [[ -n "$python" ]] || stop "no Python >= 3.11 found: install one, or set PYTHON to it."
    python_has_ensurepip "$python" || can_apt ||
        stop "$python has no ensurepip: install the package that brings it (Debian, Ubuntu: $(venv_package "$python"))."
    [[ -n "$java_home" ]] || can_apt ||
        stop "no Java >= 17 found: install a JRE 17 (Debian, Ubuntu: openjdk-17-jre-headless), or set JAVA_HOME to one."

    say "will install:"
    python_has_ensurepip "$python" || say "  with apt-get, on this machine: $(venv_package "$python")"
    [[ -n "$java_home" ]] || say "  with apt-get, on this machine: a headless JRE 17"
    say "  with pip, into .venv only: windowing[$EXTRAS] as pyproject.toml names it (about 1.2 GB on disk)"

    if [[ -z "$java_home" ]] || ! python_has_ensurepip "$python"; then apt_update; fi
    python_has_ensurepip "$python" || install_venv_module "$python"
    if [[ -z "$java_home" ]]; then
        install_java
        java_home="$(find_java_home)"
        [[ -n "$java_home" ]] || stop "Java was installed but is not found: set JAVA_HOME to it."
    fi

    build_venv "$python"
    echo "$java_home" >"$JAVA_HOME_FILE"
    wanted_stamp >"$STAMP"
    say "done, with $(.venv/bin/python -V) and the Java in $java_home"
}

main
