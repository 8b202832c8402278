"""The version of this release. It is only here and in `hazelcast_plugin/pom.xml`; `make version`
writes both."""

VERSION = "0.1.0"
