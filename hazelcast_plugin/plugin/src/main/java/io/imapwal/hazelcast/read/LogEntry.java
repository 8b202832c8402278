package io.imapwal.hazelcast.read;

import com.hazelcast.internal.serialization.Data;

/**
 * A live entry of the log.
 *
 * @param value       null: no map can have it ({@link EntryStream})
 * @param expiresAtMs Unix time; 0: never
 */
public record LogEntry(Data key, Data value, long expiresAtMs) {
}
