package io.imapwal.hazelcast.append;

import com.hazelcast.internal.serialization.Data;

import java.util.HashMap;
import java.util.Map;
import java.util.UUID;

/**
 * The keys of one call of the map store, or of a cleared partition, of which a transaction has
 * logged a change. Their places end when the changes of the call are in the log, so that a key
 * whose change fails is settled.
 */
public final class PlacedKeys {
    private final Placements placements;
    private final String map;
    private final Map<Data, UUID> keys = new HashMap<>();

    public PlacedKeys(Placements placements, String map) {
        this.placements = placements;
        this.map = map;
    }

    /** Whether a transaction has logged this change already. */
    public boolean isLogged(Data key, Data value) {
        UUID transaction = placements.logged(map, key);
        if (transaction == null) {
            return false;
        }
        keys.put(key, transaction);
        return placements.isLogged(map, key, value);
    }

    /** All keys of the partition are about to be deleted. */
    public PlacedKeys in(int partition) {
        keys.putAll(placements.logged(map, partition));
        return this;
    }

    /** The changes are in the log. */
    public void end() {
        keys.forEach((key, transaction) -> placements.remove(map, key, transaction));
    }
}
