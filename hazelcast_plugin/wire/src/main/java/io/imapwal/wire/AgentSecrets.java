package io.imapwal.wire;

import java.io.IOException;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Files that identify this member to an agent. They are read for each connection, so a key or a
 * token can be replaced without a restart.
 */
final class AgentSecrets {
    static final AgentSecrets NONE = new AgentSecrets("", new byte[0], "");

    private static final Pattern LINE = Pattern.compile("(?m)^([a-z-]+) = \"([0-9A-Za-z_.-]*)\"$");
    private static final Pattern KEY = Pattern.compile("[0-9a-fA-F]{64}");
    private static final Pattern TOKEN = Pattern.compile("[\\x21-\\x7e]{32,200}");

    private final String keyFile;
    private final byte[] agentKey;
    private final String tokenFile;

    /**
     * @param keyFile   this member's key, as {@code imap-wal keys new} makes it; "" without one
     * @param agentKey  the agent's public key; empty without one
     * @param tokenFile the token of the cluster; "" without one
     */
    AgentSecrets(String keyFile, byte[] agentKey, String tokenFile) {
        this.keyFile = keyFile;
        this.agentKey = agentKey;
        this.tokenFile = tokenFile;
    }

    /** A key of this member. */
    static final class Own {
        final byte[] publicKey;
        final byte[] secretKey;

        Own(byte[] publicKey, byte[] secretKey) {
            this.publicKey = publicKey;
            this.secretKey = secretKey;
        }
    }

    String keyFile() {
        return keyFile;
    }

    byte[] agentKey() {
        return agentKey;
    }

    /** @throws IOException with the name of the file and the fault, never with its content */
    void check() throws IOException {
        own();
        token();
    }

    /** This member's key; null: connections have no keys. */
    Own own() throws IOException {
        if (keyFile.isEmpty()) {
            return null;
        }
        byte[] publicKey = null;
        byte[] secretKey = null;
        Matcher lines = LINE.matcher(SecretFile.read(keyFile));
        while (lines.find()) {
            if (lines.group(1).equals("public-key")) {
                publicKey = key(lines.group(2));
            } else if (lines.group(1).equals("secret-key")) {
                secretKey = key(lines.group(2));
            }
        }
        if (publicKey == null || secretKey == null) {
            throw new IOException(keyFile
                    + " has no public-key and secret-key of 64 hexadecimal digits; imap-wal keys"
                    + " new makes such a file");
        }
        return new Own(publicKey, secretKey);
    }

    /** The token of the cluster; "": there is none. */
    String token() throws IOException {
        if (tokenFile.isEmpty()) {
            return "";
        }
        String token = SecretFile.read(tokenFile).trim();
        if (!TOKEN.matcher(token).matches()) {
            throw new IOException(tokenFile
                    + " has no token of 32 to 200 visible ASCII characters; imap-wal keys token"
                    + " makes one");
        }
        return token;
    }

    /** The key in hexadecimal digits; null: it is not a key. */
    static byte[] key(String hex) {
        if (!KEY.matcher(hex).matches()) {
            return null;
        }
        byte[] key = new byte[X25519.BYTES];
        for (int i = 0; i < X25519.BYTES; i++) {
            key[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
        }
        return key;
    }

    @Override
    public String toString() {
        return "key " + keyFile + ", token " + tokenFile;
    }
}
