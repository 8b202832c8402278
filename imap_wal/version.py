"""The version of this release. It is also in the `pom.xml` of `hazelcast_plugin/` and its modules,
and in `charts/imap-wal/Chart.yaml`; `make version` writes all of them."""

VERSION = "0.1.0"
