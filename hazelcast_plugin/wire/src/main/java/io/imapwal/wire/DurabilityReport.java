package io.imapwal.wire;

import java.util.List;
import java.util.Objects;

/**
 * What a member reports to its agent: of each kind of map, and of structures, the first names and
 * the number of all.
 */
public final class DurabilityReport {
    /** Characters of a name. */
    private static final int LENGTH_MAX = 200;

    private final List<List<String>> lists;
    private final List<Integer> counts;

    public DurabilityReport(List<List<String>> lists, List<Integer> counts) {
        this.lists = lists;
        this.counts = counts;
    }

    public List<List<String>> lists() {
        return lists;
    }

    public List<Integer> counts() {
        return counts;
    }

    /** {@code [[count, [name, …]], …]}, see docs/protocol.md. */
    public void write(MsgpackWriter to) {
        to.array(lists.size());
        for (int kind = 0; kind < lists.size(); kind++) {
            to.array(2).integer(counts.get(kind)).array(lists.get(kind).size());
            lists.get(kind).forEach(name -> to.string(
                    name.length() > LENGTH_MAX ? name.substring(0, LENGTH_MAX) : name));
        }
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof DurabilityReport && lists.equals(((DurabilityReport) other).lists)
                && counts.equals(((DurabilityReport) other).counts);
    }

    @Override
    public int hashCode() {
        return Objects.hash(lists, counts);
    }
}
