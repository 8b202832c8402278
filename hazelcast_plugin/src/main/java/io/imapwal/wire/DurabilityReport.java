package io.imapwal.wire;

import java.util.List;

/**
 * What a member reports to its agent: of each kind of map, and of structures, the first names and
 * the number of all.
 */
public record DurabilityReport(List<List<String>> lists, List<Integer> counts) {
    /** Characters of a name. */
    private static final int LENGTH_MAX = 200;

    /** {@code [[count, [name, …]], …]}, see docs/protocol.md. */
    public void write(MsgpackWriter to) {
        to.array(lists.size());
        for (int kind = 0; kind < lists.size(); kind++) {
            to.array(2).integer(counts.get(kind)).array(lists.get(kind).size());
            lists.get(kind).forEach(name -> to.string(
                    name.length() > LENGTH_MAX ? name.substring(0, LENGTH_MAX) : name));
        }
    }
}
