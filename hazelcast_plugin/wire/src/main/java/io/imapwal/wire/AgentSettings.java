package io.imapwal.wire;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;

/**
 * The {@code map-store} properties of a map. An unknown or malformed property is refused with the
 * property's and the map's name: a misspelt one must not mean its default without a warning.
 */
public final class AgentSettings {
    public static final String AGENT = "agent";
    static final String TIMEOUT_MS = "timeout-ms";
    static final String AGENT_TIMEOUT_MS = "agent-timeout-ms";
    static final String CONNECT_TIMEOUT_MS = "connect-timeout-ms";
    static final String RESTORE_TIMEOUT_MS = "restore-timeout-ms";
    static final String READ_THROUGH = "read-through";
    static final String RESTORE_CHUNK = "restore-chunk";
    static final String SETTLE_TIMEOUT_MS = "settle-timeout-ms";
    static final String AGENT_KEY_FILE = "agent-key-file";
    static final String AGENT_PUBLIC_KEY = "agent-public-key";
    static final String CLUSTER_TOKEN_FILE = "cluster-token-file";
    static final String COPIES = "copies";
    static final String ACKS = "acks";
    static final String COPY_AGENTS = "copy-agents";
    static final String COPY_TIMEOUT_MS = "copy-timeout-ms";
    static final String COPY_AGAIN_BYTES = "copy-again-bytes";

    public static final Set<String> KNOWN = new TreeSet<>(
            Arrays.asList(AGENT, TIMEOUT_MS, AGENT_TIMEOUT_MS, CONNECT_TIMEOUT_MS,
                    RESTORE_TIMEOUT_MS, READ_THROUGH, RESTORE_CHUNK, SETTLE_TIMEOUT_MS,
                    AGENT_KEY_FILE, AGENT_PUBLIC_KEY, CLUSTER_TOKEN_FILE, COPIES, ACKS, COPY_AGENTS,
                    COPY_TIMEOUT_MS, COPY_AGAIN_BYTES));

    private static final int NAME_BYTES_MAX = 1024;
    private static final int COPIES_MAX = 3;

    private final AgentEndpoint agent;
    private final int timeoutMs;
    private final int agentTimeoutMs;
    private final int connectTimeoutMs;
    private final int restoreTimeoutMs;
    private final boolean readThrough;
    private final int restoreChunk;
    private final int settleTimeoutMs;
    private final AgentSecrets secrets;
    private final Copies copies;

    private AgentSettings(String map, Properties properties, AgentEndpoint agent) {
        this.agent = agent;
        timeoutMs = number(map, properties, TIMEOUT_MS, 10_000, 1, 3_600_000);
        agentTimeoutMs = number(map, properties, AGENT_TIMEOUT_MS, 2_000, 1, 3_600_000);
        connectTimeoutMs = number(map, properties, CONNECT_TIMEOUT_MS, 2_000, 1, 3_600_000);
        restoreTimeoutMs = number(map, properties, RESTORE_TIMEOUT_MS, 300_000, 1, 86_400_000);
        readThrough = flag(map, properties, READ_THROUGH);
        restoreChunk = number(map, properties, RESTORE_CHUNK, 10_000, 1, 1_000_000);
        settleTimeoutMs = number(map, properties, SETTLE_TIMEOUT_MS, 10_000, 1, 3_600_000);
        secrets = secrets(map, properties, agent);
        copies = copies(map, properties, agent);
    }

    /** The settings of {@code own}, for another agent. */
    private AgentSettings(AgentSettings own, Copies.Target other) {
        agent = other.endpoint;
        timeoutMs = own.timeoutMs;
        agentTimeoutMs = own.agentTimeoutMs;
        connectTimeoutMs = own.connectTimeoutMs;
        restoreTimeoutMs = own.restoreTimeoutMs;
        readThrough = own.readThrough;
        restoreChunk = own.restoreChunk;
        settleTimeoutMs = own.settleTimeoutMs;
        secrets = other.secrets;
        copies = own.copies;
    }

    /** @throws IllegalArgumentException naming the property and the map */
    public static AgentSettings of(String map, Properties properties) {
        if (!StandardCharsets.UTF_8.newEncoder().canEncode(map)) {
            throw new IllegalArgumentException("the name of map \"" + map
                    + "\" has half of a surrogate pair, which the log could not"
                    + " distinguish from another one; choose another name");
        }
        int bytes = map.getBytes(StandardCharsets.UTF_8).length;
        if (bytes > NAME_BYTES_MAX) {
            throw new IllegalArgumentException("the name of map \"" + map + "\" takes " + bytes
                    + " bytes of UTF-8, and at most "
                    + NAME_BYTES_MAX + " are possible; shorten it");
        }
        for (String name : properties.stringPropertyNames()) {
            if (!KNOWN.contains(name)) {
                throw new IllegalArgumentException(where(name, map) + " is unknown; known are "
                        + String.join(", ", KNOWN));
            }
        }
        String agent = properties.getProperty(AGENT);
        if (agent == null || agent.trim().isEmpty()) {
            throw new IllegalArgumentException(where(AGENT, map)
                    + " is missing: it is the address of the agent beside this member,"
                    + " ipc:///path/to/socket or tcp://host:port");
        }
        return new AgentSettings(map, properties, endpoint(map, AGENT, agent.trim()));
    }

    /** Where the agent listens. */
    public AgentEndpoint agent() {
        return agent;
    }

    /** The longest wait for the acknowledgement of one append, and for the answer to a hello. */
    public int timeoutMs() {
        return timeoutMs;
    }

    /** An agent that sends nothing for this time, not even an answer to a PING, counts as hung. */
    public int agentTimeoutMs() {
        return agentTimeoutMs;
    }

    /** The longest wait for a connection. */
    public int connectTimeoutMs() {
        return connectTimeoutMs;
    }

    /** The longest wait for one answer of the agent while it merges logs. */
    public int restoreTimeoutMs() {
        return restoreTimeoutMs;
    }

    /**
     * Whether to ask the agent for keys that are not in memory, also where the map has no
     * eviction.
     */
    public boolean readThrough() {
        return readThrough;
    }

    /** Entries fetched with one request while restoring. */
    public int restoreChunk() {
        return restoreChunk;
    }

    /** How long operations wait for a partition to be settled, before they fail. */
    public int settleTimeoutMs() {
        return settleTimeoutMs;
    }

    /** The identity of this member. */
    AgentSecrets secrets() {
        return secrets;
    }

    /** In how many logs a change is, and the other agents. */
    public Copies copies() {
        return copies;
    }

    /** The same for another agent. */
    AgentSettings at(Copies.Target other) {
        return new AgentSettings(this, other);
    }

    private static AgentEndpoint endpoint(String map, String name, String text) {
        try {
            return AgentEndpoint.parse(text);
        } catch (IllegalArgumentException e) {
            throw new IllegalArgumentException(where(name, map) + ": " + e.getMessage());
        }
    }

    private static Copies copies(String map, Properties properties, AgentEndpoint own) {
        int count = number(map, properties, COPIES, 1, 1, COPIES_MAX);
        int acks = number(map, properties, ACKS, count, 1, count);
        int slowMs = number(map, properties, COPY_TIMEOUT_MS, Copies.ONE.slowMs(), 1, 3_600_000);
        int again = number(map, properties, COPY_AGAIN_BYTES, Copies.ONE.again(), 0, 1 << 30);
        List<Copies.Target> before = new ArrayList<>();
        List<Copies.Target> after = new ArrayList<>();
        boolean passed = false;
        for (String text : properties.getProperty(COPY_AGENTS, "").split(",")) {
            if (text.trim().isEmpty()) {
                continue;
            }
            String[] parts = text.trim().split("\\s+", 2);
            AgentEndpoint endpoint = endpoint(map, COPY_AGENTS, parts[0]);
            if (endpoint.equals(own)) {
                passed = true;
                continue;
            }
            (passed ? after : before).add(new Copies.Target(endpoint,
                    secretsOfOther(map, properties, endpoint, parts.length > 1 ? parts[1] : "")));
        }
        // If all members have one list, each begins after its own agent, so all agents get as much.
        after.addAll(before);
        if (count == 1) {
            after.clear();
        } else if (after.size() < count - 1) {
            throw new IllegalArgumentException(where(COPY_AGENTS, map) + " must name at least "
                    + (count - 1) + " agents besides " + own + " for copies = " + count
                    + "; with one more, changes are possible while one agent is down");
        }
        return new Copies(count, acks, slowMs, again, Collections.unmodifiableList(after));
    }

    private static AgentSecrets secretsOfOther(String map, Properties properties,
            AgentEndpoint endpoint, String hex) {
        String keyFile = properties.getProperty(AGENT_KEY_FILE, "").trim();
        byte[] key = AgentSecrets.key(hex);
        if (!hex.isEmpty() && (key == null || endpoint.path() != null)) {
            throw new IllegalArgumentException(where(COPY_AGENTS, map) + ": after " + endpoint
                    + " give nothing, or for a tcp:// endpoint the agent's public key: 64"
                    + " hexadecimal digits (imap-wal keys show)");
        }
        if (key == null && !endpoint.isLocal() || key != null && keyFile.isEmpty()) {
            throw new IllegalArgumentException(where(COPY_AGENTS, map) + ": " + endpoint
                    + " needs keys: " + AGENT_KEY_FILE + " of this member, and after the endpoint"
                    + " the agent's public key");
        }
        AgentSecrets secrets = new AgentSecrets(key == null ? "" : keyFile,
                key == null ? new byte[0] : key,
                properties.getProperty(CLUSTER_TOKEN_FILE, "").trim());
        check(map, secrets);
        return secrets;
    }

    private static AgentSecrets secrets(String map, Properties properties, AgentEndpoint endpoint) {
        String keyFile = properties.getProperty(AGENT_KEY_FILE, "").trim();
        String agentKey = properties.getProperty(AGENT_PUBLIC_KEY, "").trim();
        boolean local = endpoint.path() != null;
        if (local && agentKey.isEmpty() && properties.containsKey(COPY_AGENTS)) {
            keyFile = "";  // it is for the other agents
        }
        if (keyFile.isEmpty() != agentKey.isEmpty()) {
            throw new IllegalArgumentException(where(AGENT_KEY_FILE, map) + " and "
                    + AGENT_PUBLIC_KEY
                    + " belong together: this member's own key, and the public key of the agent");
        }
        if (!keyFile.isEmpty() && local) {
            throw new IllegalArgumentException(where(AGENT_KEY_FILE, map)
                    + " is for tcp:// endpoints; at " + endpoint
                    + " the agent asks the kernel for the user of this process");
        }
        if (keyFile.isEmpty() && !endpoint.isLocal()) {
            throw new IllegalArgumentException(where(AGENT, map)
                    + ": without keys, anyone on the network between this member and " + endpoint
                    + " could read and change its maps; set " + AGENT_KEY_FILE + " and "
                    + AGENT_PUBLIC_KEY + " (imap-wal keys new)");
        }
        byte[] key = AgentSecrets.key(agentKey);
        if (!agentKey.isEmpty() && key == null) {
            throw new IllegalArgumentException(where(AGENT_PUBLIC_KEY, map)
                    + " must be the 64 hexadecimal digits that imap-wal keys show prints for the"
                    + " agent's key");
        }
        AgentSecrets secrets = new AgentSecrets(keyFile, key == null ? new byte[0] : key,
                properties.getProperty(CLUSTER_TOKEN_FILE, "").trim());
        check(map, secrets);
        return secrets;
    }

    private static void check(String map, AgentSecrets secrets) {
        try {
            secrets.check();
        } catch (IOException e) {
            throw new IllegalArgumentException("the secrets of map \"" + map + "\": "
                    + e.getMessage(), e);
        }
    }

    private static int number(String map, Properties properties, String name, int otherwise,
            int least, int most) {
        String text = properties.getProperty(name);
        if (text == null) {
            return otherwise;
        }
        try {
            int value = Integer.parseInt(text.trim());
            if (value >= least && value <= most) {
                return value;
            }
        } catch (NumberFormatException e) {
            // falls through to the one message below
        }
        throw new IllegalArgumentException(
                where(name, map) + " must be a whole number from " + least + " to " + most
                + ", not \"" + text + "\"");
    }

    private static boolean flag(String map, Properties properties, String name) {
        String text = properties.getProperty(name, "false").trim();
        if (!text.equals("true") && !text.equals("false")) {
            throw new IllegalArgumentException(where(name, map) + " must be true or false, not \""
                    + text + "\"");
        }
        return text.equals("true");
    }

    private static String where(String property, String map) {
        return "property \"" + property + "\" of map \"" + map + "\"";
    }
}
