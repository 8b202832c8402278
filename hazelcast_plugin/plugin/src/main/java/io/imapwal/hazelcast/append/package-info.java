/** Appends to the log: order, queue, copies in several logs, and the outcome of each change. */
package io.imapwal.hazelcast.append;
