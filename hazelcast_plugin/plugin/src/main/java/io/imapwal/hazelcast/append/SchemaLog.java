package io.imapwal.hazelcast.append;

import com.hazelcast.internal.serialization.impl.compact.Schema;
import com.hazelcast.internal.serialization.impl.compact.schema.MemberSchemaService;
import com.hazelcast.logging.ILogger;
import com.hazelcast.spi.impl.NodeEngineImpl;
import io.imapwal.wire.MsgpackWriter;
import io.imapwal.wire.ProtocolException;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/**
 * The Compact schemas of a cluster, which no member has in its class path. They are logged before
 * the first entry that needs them, and registered again before a load.
 *
 * <p>A schema may be anywhere inside a value, so values are not searched. If this member has
 * serialized a value, its schema service has the schema. Each append only checks whether the number
 * of schemas in the service has changed.
 */
public final class SchemaLog {
    private final MemberSchemaService service;
    private final ILogger logger;
    /** Ids of refused schemas that were reported. */
    private final Set<Long> refused = ConcurrentHashMap.newKeySet();

    public SchemaLog(NodeEngineImpl nodeEngine) {
        this.service = nodeEngine.getSchemaService();
        this.logger = nodeEngine.getLogger(SchemaLog.class);
    }

    /** Which schemas one log has. Used by one thread at a time. */
    final class Logged {
        private final Set<Long> ids = new HashSet<>();
        /** Refused schemas are not sent again: they would keep other changes out of the log. */
        private final Set<Long> refused = new HashSet<>();
        private int size;

        /**
         * Schemas that the log lacks. The size is read first, so a schema that is added meanwhile
         * is found the next time.
         */
        public List<Schema> missing() {
            Collection<Schema> all = service.getAllSchemas();
            int now = all.size();
            if (now == size) {
                return List.of();
            }
            List<Schema> missing = new ArrayList<>();
            for (Schema schema : all) {
                if (!ids.contains(schema.getSchemaId())
                        && !refused.contains(schema.getSchemaId())) {
                    missing.add(schema);
                }
            }
            if (missing.isEmpty()) {
                size = now;
            }
            return missing;
        }

        public void add(List<Schema> schemas) {
            schemas.forEach(schema -> ids.add(schema.getSchemaId()));
        }

        /** The agent has refused this one. */
        void refuse(Schema schema) {
            refused.add(schema.getSchemaId());
        }

        public void clear() {
            ids.clear();
            size = 0;
        }
    }

    /** {@code ["schema", schema_id, bytes]} */
    public static void write(MsgpackWriter to, Schema schema) {
        to.array(3).string("schema").integer(schema.getSchemaId()).binary(SchemaForm.write(schema));
    }

    /**
     * Makes a logged schema known to all members. Waits for them, so it must not be called on a
     * partition's thread. A refused schema is reported, and only values that need it are
     * unreadable.
     */
    public void register(long schemaId, byte[] bytes) {
        try {
            Schema read = SchemaForm.read(schemaId, bytes);
            Schema known = service.get(schemaId);
            if (known == null) {
                put(read);
            } else if (!known.equals(read)) {
                throw new ProtocolException("another schema has that id in this cluster, of type "
                        + known.getTypeName());
            }
        } catch (ProtocolException e) {
            if (refused.add(schemaId)) {
                logger.severe("imap-wal: what the log has as Compact schema " + schemaId
                        + " is not used: " + e.getMessage()
                        + "; values that need this schema cannot be read");
            }
        }
    }

    private void put(Schema schema) throws ProtocolException {
        try {
            service.put(schema);
        } catch (RuntimeException e) {
            Throwable cause = e;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            // A member that has another schema with this id throws exactly this class. Subclasses
            // mean that a member leaves.
            if (cause.getClass() == IllegalStateException.class) {
                throw new ProtocolException(cause.getMessage());
            }
            throw e;
        }
    }
}
