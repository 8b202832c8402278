"""The version of this release. It is also in `hazelcast_plugin/pom.xml` and
`charts/imap-wal/Chart.yaml`; `make version` writes all of them."""

VERSION = "0.1.0"
