/** Reads of the log: entries, listings of keys, digests. */
package io.imapwal.hazelcast.read;
