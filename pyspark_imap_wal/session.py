"""The Spark session of this process: the running one, or a new one.

The user's properties count; a later place overrides an earlier one:

    spark-defaults.conf  ▶  spark-submit, PYSPARK_SUBMIT_ARGS  ▶  the properties given to `session`

A property that none of them names gets imap-wal's default. So the configuration is read after the
JVM has started: only then are the properties of `spark-submit` known.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from imap_wal.errors import EngineFailed, InvalidSetting

LOCAL = "local[*,4]"
"""All cores of this machine, and four attempts at a task, as on a cluster. With Spark's own default
a task is never tried again, so one killed Python worker would end the whole rewrite."""
SPARKS_DEFAULT = "local[*]"
"""The master that spark-submit writes if the user named none."""
SPARKS_NAME = "pyspark-shell"
"""Spark's name for an application that the user did not name."""
HIDDEN = re.compile(r"(?i)secret|password|passphrase|token|credential|(^|[._-])(key|sas)([._-]|$)")
"""Properties with such names are not put on the command line of the JVM, which every user of the
machine can read, and Spark does not show them. Spark's own default does not match the keys of Azure
and Google, such as `fs.azure.account.key.ACCOUNT`."""
PYTHON = "spark.pyspark.python"
_AT_START = {"spark.ui.showConsoleProgress": "false"}
"""Passed when the JVM starts, because spark-submit otherwise sets it to `true` for Python. So a
`true` in spark-defaults.conf has no effect."""
_OURS = {
    **_AT_START,
    "spark.log.level": "ERROR",
    "spark.redaction.regex": HIDDEN.pattern,
    "spark.sql.python.filterPushdown.enabled": "true",
}
_WITHOUT_MODULE = re.compile(r"No module named '([\w.]+)'")
_RAISED = re.compile(r"[A-Za-z_][\w.$]*(Error|Exception): \S")
_PACKAGES = ("imap_wal", "pyspark_imap_wal", "storage_backends")
_TEXT_MAX = 400


def session(**properties: str) -> SparkSession:
    """The running Spark session, which stays as it is, or a new one. Never one of Spark Connect: a
    rewrite needs a driver in this process.

    Args:
        properties: Spark's properties for a new session, as `**{"spark.master": "spark://…"}`.

    Returns:
        The session.

    Raises:
        EngineFailed: Spark does not start.
        InvalidSetting: Spark Connect is asked for, or the name of a property is not Spark's.
    """
    refuse_connect()
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    with spark_errors():
        return SparkSession.builder.config(conf=configuration(properties)).getOrCreate()


def configuration(properties: Mapping[str, str]) -> SparkConf:
    """Starts the JVM if there is none, and returns the configuration for a new session. Raises
    `InvalidSetting`."""
    foreign = sorted(name for name in properties if not name.startswith("spark."))
    if foreign:
        raise InvalidSetting(
            f"{foreign[0]!r} is not a property of Spark: their names begin with spark., as in "
            "spark.executor.memory"
        )
    refuse_connect(properties)
    shown = {name: value for name, value in properties.items() if not HIDDEN.search(name)}
    with _python_by_name(), warnings.catch_warnings():
        # Reads do not use pandas; `toPandas` warns itself.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")
        SparkContext._ensure_initialized(
            conf=SparkConf(loadDefaults=False).setAll([*{**_AT_START, **shown}.items()])
        )
        conf = SparkConf().setAll(list(properties.items()))
    if conf.get("spark.master", SPARKS_DEFAULT) == SPARKS_DEFAULT:
        conf.setMaster(LOCAL)
    if conf.get("spark.app.name", SPARKS_NAME) == SPARKS_NAME:
        conf.setAppName("imap-wal")
    for name, value in _OURS.items():
        conf.setIfMissing(name, value)
    if is_local(conf):
        conf.setIfMissing("spark.ui.enabled", "false")
    _choose_python(conf)
    return conf


def refuse_connect(properties: Mapping[str, str] = MappingProxyType({})) -> None:
    """Raises `InvalidSetting` if this process is a client of Spark Connect, or is to be one."""
    if is_remote() or "SPARK_REMOTE" in os.environ or "spark.remote" in properties:
        raise InvalidSetting(
            "this process uses Spark Connect (SPARK_REMOTE, spark.remote or a session of it), and "
            "a rewrite cannot: run it in a process of its own that names a master, as in "
            "--spark-conf spark.master=spark://host:7077. For reads, streams and backfills use "
            "your own session: SparkSession.builder.remote(…).getOrCreate()"
        )


def is_local(conf: SparkConf) -> bool:
    """Whether the workers run in the process of the driver."""
    master = conf.get("spark.master", "") or ""
    return master.startswith("local") and not master.startswith("local-cluster")


@contextmanager
def _python_by_name() -> Iterator[None]:
    """The JVM takes one interpreter for tables, from the variable PYSPARK_DRIVER_PYTHON: it plans
    reads with it, and all executors run it too. A path of this machine may not exist on theirs, so
    it is a name, which is this interpreter in the PATH of the JVM. If the user has named the path
    of this interpreter for the executors (PYSPARK_PYTHON), the JVM takes that."""
    interpreter = Path(sys.executable)
    named = Path(os.environ.get("PYSPARK_PYTHON", ""))
    if "PYSPARK_DRIVER_PYTHON" in os.environ or named.parent == interpreter.parent:
        yield
        return
    by_name = interpreter.with_name("python3")
    name = by_name.name if by_name.exists() and by_name.samefile(interpreter) else interpreter.name
    path = os.environ.get("PATH")
    os.environ["PYSPARK_DRIVER_PYTHON"] = name
    os.environ["PATH"] = os.pathsep.join([str(interpreter.parent), *([path] if path else [])])
    try:
        yield
    finally:
        del os.environ["PYSPARK_DRIVER_PYTHON"]
        if path is None:
            del os.environ["PATH"]
        else:
            os.environ["PATH"] = path


def _choose_python(conf: SparkConf) -> None:
    """PySpark reads the interpreter of the workers from a variable only. On this machine it is that
    of this process; on others, this path may not exist, so Spark's own default applies: python3."""
    configured = conf.get(PYTHON, "")
    if configured:
        os.environ["PYSPARK_PYTHON"] = configured
    elif is_local(conf):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


@contextmanager
def spark_errors() -> Iterator[None]:
    """Raises `EngineFailed` for the errors of Spark itself. Workers return errors of imap-wal as
    values, with their own type."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, PySparkException) and not _is_py4j(error):
            raise
        message, advice = explained(str(error))
        raise EngineFailed(message, advice) from error


def _is_py4j(error: Exception) -> bool:
    """py4j connects Python with the JVM; it comes with pyspark."""
    return type(error).__module__.partition(".")[0] == "py4j"


def explained(text: str) -> tuple[str, str]:
    """What happened, from the text of an error of Spark, and what to do."""
    module = _WITHOUT_MODULE.search(text)
    if module and module[1].partition(".")[0] in _PACKAGES:
        return "Spark's workers do not have imap-wal", (
            "install it there, or send it with the job: `imap-wal spark package imap-wal.zip` "
            "writes it and prints how to send it"
        )
    if module:
        return f"Spark's workers do not have the Python module {module[1]}", (
            "install it there, or send it with the job: `imap-wal spark package --help`"
        )
    if "JAVA_GATEWAY_EXITED" in text:
        return "Spark did not start", (
            "the lines before this one have the reason; it needs Java 17 or newer (JAVA_HOME), and "
            "a master such as spark://host:7077, yarn, k8s://… or local[*]"
        )
    return f"Spark could not finish: {_last_cause(text)}", (
        "nothing was published; the lines before this one and the logs of Spark's executors may "
        "say more; --debug shows all of Spark's text"
    )


def _last_cause(text: str) -> str:
    """The most useful line of a long text: the last error that it names, or else the first line
    that is not empty."""
    lines = [stripped for line in text.splitlines() if (stripped := line.strip(" \t:"))]
    raised = [line for line in lines if _RAISED.match(line)]
    return (raised[-1] if raised else lines[0] if lines else "it gave no reason")[:_TEXT_MAX]
