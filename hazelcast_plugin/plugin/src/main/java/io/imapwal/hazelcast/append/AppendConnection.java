package io.imapwal.hazelcast.append;

import io.imapwal.wire.SessionInfo;

import java.io.IOException;

/** The agents to which changes are sent: one, or several. */
interface AppendConnection extends AgentWriter.Channel {
    /** The session of the newest welcome, also of a closed connection; null: none yet. */
    SessionInfo newest();

    /** Why there is no connection; null: there is one, or none was needed yet. */
    IOException failure();

    /** There is a newer view: answers of the agent in an older one do not count. */
    void learned();

    /** The next use says hello again, because a view may have left this member out. */
    void recheck();

    /** From now on no new connection is made. */
    void stop();

    /** How many agents can be used now, as far as is known. */
    int usable();

    /** The acknowledged changes that are, or were, in fewer logs than they should be. */
    CopyCounts counts();

    /** Whether such changes may be copied again, or an agent has failed, since the hello. */
    boolean isIncomplete();
}
