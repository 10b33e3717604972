# Runs tests/spark with each Spark in conf/spark-versions.txt: on a wheel, in an environment of its own under .venvs.
# Usage: versions.sh PYTHON [ARGUMENT OF PYTEST ...]
set -eu
python=$1
shift
cd "$(dirname "$0")/.."
place=$PWD/.venvs

rm -rf "$place/wheel" "$place/tree"
mkdir -p "$place/tree"
"$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$place/wheel" .
# The tests without the packages beside them, so that they import the wheel.
cp -R tests pyproject.toml "$place/tree"
grep -v -E '^(pyspark|py4j)==' conf/constraints.txt >"$place/constraints.txt"

failed=
for pin in $(grep '^pyspark==' conf/spark-versions.txt); do
	version=${pin#pyspark==}
	environment=$place/spark-$version
	interpreter=$environment/bin/python
	echo "===== Spark $version"
	[ -x "$interpreter" ] || "$python" -m venv "$environment"
	"$interpreter" -m pip --disable-pip-version-check --quiet install --constraint "$place/constraints.txt" "$pin" numpy \
		pyarrow crc32c pandas zstandard googleapis-common-protos grpcio grpcio-status chispa hypothesis pytest pytest-xdist
	"$interpreter" -m pip --disable-pip-version-check --quiet install --no-deps --force-reinstall "$place"/wheel/*.whl
	(
		export PYSPARK_PYTHON="$interpreter" PYSPARK_DRIVER_PYTHON="$interpreter"
		cd "$place/tree" && "$interpreter" -m pytest tests/spark -m "not interop and not soak" "$@"
	) || failed="$failed $version"
done
if [ -n "$failed" ]; then
	echo "Failed with Spark$failed" >&2
	exit 1
fi
