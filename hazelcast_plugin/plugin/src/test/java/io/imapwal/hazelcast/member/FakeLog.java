package io.imapwal.hazelcast.member;

import io.imapwal.wire.SessionInfo;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;

/** The log of one or more {@link FakeAgent}s: tables in memory. */
public final class FakeLog {

    public record Record(byte[] key, String keyClass, byte[] value, String valueClass,
            boolean deleted,
            long expiresAtMs, int partition, List<Long> order) {
        private long[] orderArray() {
            return order.stream().mapToLong(Long::longValue).toArray();
        }

        private boolean isOlderThan(Record other) {
            return Arrays.compare(orderArray(), other.orderArray()) < 0;
        }
    }

    public final Map<String, TreeMap<byte[], Record>> maps = new TreeMap<>();
    public final Map<Long, byte[]> schemas = new LinkedHashMap<>();
    /** Of each session, the number of its last request in the log. */
    final Map<Long, Long> lastRequests = new TreeMap<>();
    private final List<Record> appended = new ArrayList<>();
    /** How many changes each map has had. */
    private final Map<String, Long> counts = new HashMap<>();
    private final Map<List<Long>, Set<String>> copies = new HashMap<>();
    private final Map<String, Long> sessions = new TreeMap<>();
    /** Of each session, its plug-in and its view. */
    private final Map<Long, String> plugins = new TreeMap<>();
    private final Map<Long, Long> views = new TreeMap<>();
    private String newestCluster = "";
    public long newestView;
    /** Of the newest view; null: any member of the cluster. */
    public Set<String> viewMembers;
    /** Another cluster has claimed the log, and keeps it. */
    public boolean followed;
    /** No member of the newest view is alive. */
    public boolean silent;

    /** The next view of the newest cluster. */
    public synchronized void claimView(Set<String> members) {
        newestView++;
        viewMembers = members;
    }

    /**
     * The next incarnation, of another cluster. A real agent refuses the older cluster from then
     * on. Here two members of one test take turns.
     */
    public synchronized void claimCluster(String clusterId) {
        newestCluster = clusterId;
        claimView(null);
    }

    /** As an older copy of it: without the newest view and its sessions. Entries are kept. */
    public synchronized void loseView() {
        plugins.keySet().removeIf(session -> !isVoid(session));
        views.values().removeIf(view -> view == newestView);
        newestView--;
        viewMembers = null;
    }

    synchronized String newestCluster() {
        return newestCluster;
    }

    synchronized boolean mayWrite(String clusterId, String member, long view) {
        return clusterId.equals(newestCluster)
                && (viewMembers == null || viewMembers.contains(member) || view == newestView);
    }

    /** @param shared the plug-in has the same session in several logs */
    public synchronized long session(String plugin, boolean shared) {
        long session = sessions.computeIfAbsent(plugin + "/" + newestView, name ->
                sessions.size() + 1L) + (shared ? SessionInfo.SHARED : 0);
        plugins.put(session, plugin);
        views.put(session, newestView);
        return session;
    }

    public synchronized boolean isVoid(long session) {
        return views.get(session) != newestView;
    }

    /** Sessions of the plug-in in earlier views, with the last request of each in the log. */
    public synchronized Map<Long, Long> former(String plugin, Map<Long, Long> lastRequests) {
        Map<Long, Long> former = new TreeMap<>();
        plugins.forEach((session, name) -> {
            if (name.equals(plugin) && isVoid(session)) {
                former.put(session, lastRequests.getOrDefault(session, 0L));
            }
        });
        return former;
    }

    /** The live entry of a key; null: none. */
    public synchronized Record newest(String map, byte[] key) {
        Record found = entries(map).get(key);
        return found == null || found.deleted
                || (found.expiresAtMs != 0 && found.expiresAtMs <= System.currentTimeMillis())
                ? null : found;
    }

    /** All keys of a map with a live entry, sorted. */
    synchronized List<byte[]> liveKeys(String map) {
        List<byte[]> keys = new ArrayList<>(entries(map).keySet());
        keys.removeIf(key -> newest(map, key) == null);
        return keys;
    }

    public synchronized int size(String map) {
        return liveKeys(map).size();
    }

    public synchronized void put(String map, Record record) {
        appended.add(record);
        counts.merge(map, 1L, Long::sum);
        maps.computeIfAbsent(map, name -> new TreeMap<>(Arrays::compare))
                .merge(record.key, record, (a, b) -> b.isOlderThan(a) ? a : b);
    }

    /** Deletes all keys of a partition: in this table, with a tombstone for each. */
    public synchronized void clear(String map, Record clear) {
        appended.add(clear);
        entries(map).replaceAll((key, known) ->
                known.partition == clear.partition && known.isOlderThan(clear)
                        ? new Record(key, "", null, "", true, 0, clear.partition, clear.order)
                        : known);
    }

    /** A node has a change of that order. */
    synchronized void noteCopy(String node, List<Long> order) {
        copies.computeIfAbsent(order, each -> new TreeSet<>()).add(node);
    }

    /** The nodes whose logs have the newest change of a key. */
    synchronized Set<String> copiesOf(String map, byte[] key) {
        Record found = entries(map).get(key);
        return found == null ? Set.of() : Set.copyOf(copies.get(found.order));
    }

    /** Everything that was appended, in log order. */
    public synchronized List<Record> appended() {
        return new ArrayList<>(appended);
    }

    /** How many changes of keys of a map were appended. */
    public synchronized long appendedTo(String map) {
        return counts.getOrDefault(map, 0L);
    }

    private TreeMap<byte[], Record> entries(String map) {
        return maps.getOrDefault(map, new TreeMap<>(Arrays::compare));
    }
}
