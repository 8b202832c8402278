/** Transactions of maps with a log: all of one is logged, or nothing. */
package io.imapwal.hazelcast.transactions;
