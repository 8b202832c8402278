package io.imapwal.hazelcast.settle;

import com.hazelcast.nio.serialization.HazelcastSerializationException;
import org.junit.jupiter.api.Test;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** What an error says about a member that does not answer. */
class MapPeersTest {
    /** Hazelcast's own text about it does not name the plug-in. */
    @Test
    void aMemberWithoutThePlugInIsNamedAsSuch() {
        String why = MapPeers.whyNoAnswer(new HazelcastSerializationException(
                "No DataSerializerFactory registered for namespace: -77001"));
        assertTrue(why.contains("it has no plug-in"), why);
        assertTrue(why.contains("No DataSerializerFactory"), why);
    }

    @Test
    void anotherFailureIsNotExplainedByThePlugIn() {
        assertEquals(" does not answer: closed",
                MapPeers.whyNoAnswer(new IllegalStateException("closed")));
    }
}
