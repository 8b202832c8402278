package io.imapwal.seatunnel;

import org.apache.seatunnel.engine.imap.storage.api.IMapStorage;
import org.apache.seatunnel.engine.imap.storage.api.IMapStorageFactory;

import java.util.Map;

/**
 * The storage {@code type: imap-wal} of SeaTunnel's own {@code FileMapStoreFactory}, in the place
 * of {@code type: hdfs}.
 */
public final class ImapWalStorageFactory implements IMapStorageFactory {
    static final String TYPE = "imap-wal";

    @Override
    public String factoryIdentifier() {
        return TYPE;
    }

    @Override
    public IMapStorage create(Map<String, Object> properties) {
        ImapWalStorage storage = new ImapWalStorage();
        storage.initialize(properties);
        return storage;
    }
}
