/** Makes the memory of this member's partitions equal to the log. */
package io.imapwal.hazelcast.settle;
