/** Connections to an agent and their messages: ZeroMQ, msgpack, CURVE. Knows no Hazelcast. */
package io.imapwal.wire;
