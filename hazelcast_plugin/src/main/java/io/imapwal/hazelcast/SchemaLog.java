package io.imapwal.hazelcast;

import com.hazelcast.internal.serialization.InternalSerializationService;
import com.hazelcast.internal.serialization.impl.compact.Schema;
import com.hazelcast.internal.serialization.impl.compact.schema.MemberSchemaService;
import com.hazelcast.internal.serialization.impl.HeapData;
import com.hazelcast.spi.impl.NodeEngineImpl;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Set;

/**
 * The Compact schemas of a cluster, which live in no member's class path: logged before the first entry that needs them,
 * registered again before a load.
 *
 * <p>A schema may hide anywhere inside a value, so values are not searched. What was turned into bytes on this member has its
 * schema in this member's schema service by then; the hot path asks only whether the service's size changed.
 */
final class SchemaLog {
    private final MemberSchemaService service;
    private final InternalSerializationService serialization;

    SchemaLog(NodeEngineImpl nodeEngine) {
        this.service = nodeEngine.getSchemaService();
        this.serialization = (InternalSerializationService) nodeEngine.getSerializationService();
    }

    /** Which schemas one log has; used by one thread at a time. */
    final class Logged {
        private final Set<Long> ids = new HashSet<>();
        private int size;

        /** Schemas that the log lacks. The size is read first: a schema that comes in between is found the next time. */
        List<Schema> missing() {
            Collection<Schema> all = service.getAllSchemas();
            int now = all.size();
            if (now == size) {
                return List.of();
            }
            List<Schema> missing = new ArrayList<>();
            for (Schema schema : all) {
                if (!ids.contains(schema.getSchemaId())) {
                    missing.add(schema);
                }
            }
            if (missing.isEmpty()) {
                size = now;
            }
            return missing;
        }

        void add(List<Schema> schemas) {
            schemas.forEach(schema -> ids.add(schema.getSchemaId()));
        }

        void clear() {
            ids.clear();
            size = 0;
        }
    }

    /** {@code ["schema", schema_id, bytes]} */
    void write(MsgpackWriter to, Schema schema) {
        to.array(3).string("schema").integer(schema.getSchemaId()).binary(serialization.toData(schema).toByteArray());
    }

    /** Makes a logged schema known to all members. Waits for them: never on a partition's thread. */
    void register(long schemaId, byte[] bytes) throws ProtocolException {
        if (service.get(schemaId) != null) {
            return;
        }
        Object schema = serialization.toObject(new HeapData(bytes));
        if (!(schema instanceof Schema found) || found.getSchemaId() != schemaId) {
            throw new ProtocolException("what the agent calls Compact schema " + schemaId + " is " + schema);
        }
        service.put(found);
    }
}
