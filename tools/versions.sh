#!/usr/bin/env bash
# Runs tests with other versions than those of .venv, of PySpark, Python or a package, each in an environment of its own,
# .venv-spark-<version>-python<version>, with the packages in its name where some are asked for.
#   bash tools/versions.sh                                    all of VERSIONS, the whole Spark suite
#   bash tools/versions.sh "4.1" tests/spark/test_query.py    one of them, some files
#   PYTHON=python3.13 bash tools/versions.sh 4.3              with another Python: the tests without Spark too, where no files are named
#   PACKAGES="pandas>=3" bash tools/versions.sh 4.3           with other versions of packages, the same way
#   PACKAGES=lowest bash tools/versions.sh 4.1.0              with the lowest versions that pyproject.toml allows
#   PART=1/2 bash tools/versions.sh 4.1                       a part of the Spark suite
#   CHOSEN="" BESIDE="" bash tools/versions.sh 4.1 tests/delta_tables.py   whatever its marks, in one process
set -euo pipefail
shopt -s inherit_errexit  # a failed installation leaves no mark
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly VERSIONS="${1:-4.1 4.2}"  # beside the one of .venv
shift || true
readonly TESTS=("$@")
readonly PACKAGES="${PACKAGES:-}"
readonly LEFT_OUT="not crash and not services and not cluster and not object_stores and not browser"
readonly PYTHON="${PYTHON:-.venv/bin/python}"
export JAVA_HOME="${JAVA_HOME:-$(cat .venv/java-home)}"

stop() { printf 'versions: %s\n' "$*" >&2; exit 1; }

command -v "$PYTHON" >/dev/null || stop "there is no $PYTHON: install it, or name another one, PYTHON=python3.12"
number="$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')" || stop "$PYTHON does not run"

# The words of PACKAGES; for `lowest` the lower bound of each but PySpark, whose version is given, and stubs, whose versions end in a date.
packages() {
    if [[ "$PACKAGES" != lowest ]]; then echo "$PACKAGES"; return; fi
    "$1/bin/python" -c 'from tests.wheel import FOR_USERS, lowest_of
print(*lowest_of([*FOR_USERS, "connect", "examples", "docs", "dev"]), sep="\n")' | grep -vE '^pyspark(\[|=)|^types-|-stubs='
}

# The environment of a version; made where it is missing, or not whole, or pyproject.toml has changed.
made() {
    local home=".venv-spark-$1-python$number" wanted
    [[ -z "$PACKAGES" ]] || home+="-$(tr -cs 'a-zA-Z0-9.\n' - <<<"$PACKAGES")"
    wanted="$(pwd; cksum <pyproject.toml; "$PYTHON" -V; echo "$PACKAGES")"
    if [[ "$(cat "$home/.made" 2>/dev/null)" != "$wanted" ]]; then
        printf 'versions: making %s\n' "$home" >&2
        "$PYTHON" -m venv --clear "$home"
        "$home/bin/python" -m pip install --quiet --disable-pip-version-check --use-pep517 \
            --editable ".[spark,examples,dev]" "pyspark==$1.*" >&2
        # After the others: the extra dev has bounds that users do not have.
        # shellcheck disable=SC2046  # words
        [[ -z "$PACKAGES" ]] || "$home/bin/python" -m pip install --quiet --disable-pip-version-check $(packages "$home") >&2
        echo "$wanted" >"$home/.made"
    fi
    echo "$home/bin/python"
}

# Warnings that are no error here: an older PySpark leaves sockets to the garbage collector; the lowest matplotlib calls the newest
# pyparsing by old names; PySpark warns of pandas 3.
warnings_of() {
    [[ "$1" != 4.[12]* ]] || printf '%s\n' -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning
    [[ "$PACKAGES" != lowest ]] || printf '%s\n' -W ignore::DeprecationWarning
    [[ "$PACKAGES" != *pandas* ]] || printf '%s\n' -W "ignore:PySpark does not yet fully support pandas:FutureWarning"
}

code=0
for version in $VERSIONS; do
    python="$(made "$version")"
    mapfile -t warnings < <(warnings_of "$version")
    printf '\n== versions: %s\n' "$("$python" -c 'import pyspark, pandas, pyarrow, sys
print("Python", sys.version.split()[0], "PySpark", pyspark.__version__, "pandas", pandas.__version__, "pyarrow", pyarrow.__version__)')"
    # shellcheck disable=SC2206  # BESIDE are words
    run=("$python" -m pytest ${BESIDE--n 2 --dist worksteal} -p no:cacheprovider "${warnings[@]}")
    if ((${#TESTS[@]} == 0)) && [[ "$PYTHON" != .venv/bin/python || -n "$PACKAGES" ]]; then
        "${run[@]}" --doctest-modules -p tests.conftest windowing || code=1
        "${run[@]}" -m "not spark and $LEFT_OUT" || code=1
    fi
    chosen="$LEFT_OUT"
    ((${#TESTS[@]} > 0)) || chosen="spark and $LEFT_OUT"
    chosen="${CHOSEN-$chosen}"
    [[ "$version" != 4.1* || -z "$chosen" ]] || chosen+=" and not python_source"  # it has none, which test_session.py has refused by name
    "${run[@]}" --part "${PART:-1/1}" -m "$chosen" --durations 5 "${TESTS[@]:-tests/spark}" || code=1
done
exit "$code"
