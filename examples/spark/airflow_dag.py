"""A DAG of Airflow: every night a rewrite on Spark, then a prune.

It needs imap-wal and apache-airflow-providers-apache-spark where Airflow runs its tasks, and a
connection `spark_default` to the master.
"""

from datetime import UTC, datetime, timedelta

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG

with DAG(
    "imap_wal_rewrite",
    schedule="0 2 * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,  # two at once are safe, but the second would only wait for the first
    default_args={"retries": 2, "retry_delay": timedelta(minutes=10)},
):
    SparkSubmitOperator(
        task_id="rewrite_and_prune",
        application="/opt/jobs/nightly_rewrite.py",
        application_args=["s3://bucket/maps"],
        archives="/opt/jobs/imap-wal.zip#imap-wal",  # written by `imap-wal spark package`
        conf={"spark.executorEnv.PYTHONPATH": "imap-wal"},
    )
