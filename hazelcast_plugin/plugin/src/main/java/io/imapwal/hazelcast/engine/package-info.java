/** What all packages above use of Hazelcast: this member, threads of partitions, operations. */
package io.imapwal.hazelcast.engine;
