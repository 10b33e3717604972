#!/bin/sh
# Says in one line what is missing on this machine, before anything is downloaded.
#
#   sh conf/require.sh python [COMMAND]   print the path of a Python that is new enough
#   sh conf/require.sh java               the Java that Spark would start
#   sh conf/require.sh maven              needed for a real Kafka broker only
#   sh conf/require.sh chromium           needed for the tests of pages only; root gets it installed where apt-get is
#
# POSIX shell: it has to run where nothing is installed yet.
set -eu

OLDEST_PYTHON_MINOR=11
OLDEST_JAVA=17

fail() {
    echo "segmentlog: $1" >&2
    exit 1
}

is_new_enough() {
    "$1" -c "import sys; sys.exit(sys.version_info < (3, $OLDEST_PYTHON_MINOR))" >/dev/null 2>&1
}

version_of() {
    # Python 2 writes its version to stderr.
    "$1" --version 2>&1 | head -n 1
}

require_python() {
    found=""
    oldest_seen=""
    for command in ${1:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
        command -v "$command" >/dev/null 2>&1 || continue
        if is_new_enough "$command"; then
            found=$command
            break
        fi
        oldest_seen=${oldest_seen:-"$(command -v "$command") is $(version_of "$command")"}
    done
    if [ -z "$found" ]; then
        fail "Python 3.$OLDEST_PYTHON_MINOR or newer is needed; ${oldest_seen:-${1:-python3} was not found}.\
 Install it (Debian, Ubuntu: python3.$OLDEST_PYTHON_MINOR and python3.$OLDEST_PYTHON_MINOR-venv), or name one: make PYTHON=/path/to/python3"
    fi
    # Debian ships Python without venv and pip.
    "$found" -c "import ensurepip, venv" >/dev/null 2>&1 ||
        fail "$(command -v "$found") has no venv module. Install it (Debian, Ubuntu: the package python3-venv)."
    "$found" -c "import sys; print(sys.executable)"
}

require_java() {
    # Spark starts $JAVA_HOME/bin/java where JAVA_HOME is set, else java from PATH.
    wanted="Spark needs Java $OLDEST_JAVA or newer"
    install="Install a JDK $OLDEST_JAVA (Debian, Ubuntu: openjdk-$OLDEST_JAVA-jre-headless; macOS: openjdk@$OLDEST_JAVA) or set JAVA_HOME to one."
    if [ -n "${JAVA_HOME:-}" ]; then
        java=$JAVA_HOME/bin/java
        [ -x "$java" ] || fail "$wanted, but JAVA_HOME is $JAVA_HOME and has no bin/java. $install"
    elif ! command -v java >/dev/null 2>&1; then
        fail "$wanted, but no java is on PATH and JAVA_HOME is not set. $install"
    else
        java=$(command -v java)
    fi
    # 1.8.0_392 is Java 8, 17.0.15 and 17-ea are Java 17. macOS has a java that only says that there is none.
    version=$("$java" -version 2>&1 | sed -n 's/.* version "\([^"]*\)".*/\1/p' | head -n 1)
    major=$(echo "${version#1.}" | sed 's/[^0-9].*//')
    [ -n "$major" ] || fail "$wanted, but $java does not tell its version. $install"
    [ "$major" -ge "$OLDEST_JAVA" ] || fail "$wanted, but $java is version $version. $install"
}

require_maven() {
    command -v mvn >/dev/null 2>&1 ||
        fail "Maven is needed to fetch a real Kafka broker, but no mvn is on PATH. Install it (Debian, Ubuntu: maven; macOS: brew install maven)."
}

has_chromium() {
    for command in chromium chromium-browser google-chrome-stable google-chrome; do
        command -v "$command" >/dev/null 2>&1 && return 0
    done
    return 1
}

require_chromium() {
    has_chromium && return 0
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "Installing chromium" >&2
        { apt-get update && apt-get install --yes --no-install-recommends chromium; } >/dev/null 2>&1 || true
    fi
    has_chromium ||
        fail "Chromium is needed to test the site of docs/ and the page that segmentlog report writes, but none is on PATH. Install it (Debian: chromium; Ubuntu: chromium-browser; macOS: brew install chromium)."
}

case "${1:-}" in
python) require_python "${2:-}" ;;
java) require_java ;;
maven) require_maven ;;
chromium) require_chromium ;;
*) fail "usage: sh conf/require.sh python [COMMAND] | java | maven | chromium" ;;
esac
