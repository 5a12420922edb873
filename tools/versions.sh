#!/usr/bin/env bash
# Runs tests on Spark with other versions of PySpark than the newest, each in an environment of its own, .venv-spark-<version>.
#   bash tools/versions.sh                                    all of VERSIONS, the whole Spark suite
#   bash tools/versions.sh "4.1" tests/spark/test_query.py    one of them, some files
#   CHOSEN="" BESIDE="" bash tools/versions.sh 4.1 tests/delta_tables.py   whatever its marks, in one process
#   PYTHON=python3.13 PACKAGES="pandas<3" bash tools/versions.sh     with another Python; with other versions of packages
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly VERSIONS="${1:-4.1 4.2}"  # beside the one of .venv
shift || true
readonly TESTS=("${@:-tests/spark}")
readonly PACKAGES="${PACKAGES:-}"
PYTHON="${PYTHON:-.venv/bin/python}"
export JAVA_HOME="${JAVA_HOME:-$(cat .venv/java-home)}"

# The environment of a version; made where it is missing or pyproject.toml has changed.
made() {
    local home=".venv-spark-$1" wanted
    wanted="$(pwd; cksum <pyproject.toml; "$PYTHON" -V; echo "$PACKAGES")"
    if [[ "$(cat "$home/.made" 2>/dev/null)" != "$wanted" ]]; then
        printf 'versions: making %s with PySpark %s\n' "$home" "$1" >&2
        "$PYTHON" -m venv --clear "$home"
        # shellcheck disable=SC2086  # PACKAGES are words
        "$home/bin/python" -m pip install --quiet --disable-pip-version-check --use-pep517 \
            --editable ".[spark,examples,dev]" "pyspark==$1.*" $PACKAGES >&2
        echo "$wanted" >"$home/.made"
    fi
    echo "$home/bin/python"
}

for version in $VERSIONS; do
    python="$(made "$version")"
    chosen="${CHOSEN-spark and not crash and not services and not cluster}"
    [[ "$version" != 4.1 || -z "$chosen" ]] || chosen+=" and not python_source"  # it has none, which test_session.py has refused by name
    printf '\n== versions: %s\n' "$("$python" -c 'import pyspark, pandas, pyarrow, sys
print("Python", sys.version.split()[0], "PySpark", pyspark.__version__, "pandas", pandas.__version__, "pyarrow", pyarrow.__version__)')"
    # An older PySpark leaves sockets to the garbage collector; pandas 3 is warned of by PySpark.
    # shellcheck disable=SC2086  # BESIDE are words
    "$python" -m pytest ${BESIDE--n 2 --dist worksteal} -m "$chosen" -p no:cacheprovider -W ignore::ResourceWarning \
        -W ignore::pytest.PytestUnraisableExceptionWarning -W ignore::UserWarning:pyspark "${TESTS[@]}"
done
