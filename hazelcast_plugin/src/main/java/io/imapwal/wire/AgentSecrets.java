package io.imapwal.wire;

import java.io.IOException;
import java.util.HexFormat;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Files that identify this member to an agent. They are read for each connection, so a key or a
 * token can be replaced without a restart.
 *
 * @param keyFile   this member's key, as {@code imap-wal keys new} makes it; "" without one
 * @param agentKey  the agent's public key; empty without one
 * @param tokenFile the token of the cluster; "" without one
 */
record AgentSecrets(String keyFile, byte[] agentKey, String tokenFile) {
    static final AgentSecrets NONE = new AgentSecrets("", new byte[0], "");
    static final int KEY_BYTES = 32;

    private static final Pattern LINE = Pattern.compile("(?m)^([a-z-]+) = \"([0-9A-Za-z_.-]*)\"$");
    private static final Pattern TOKEN = Pattern.compile("[\\x21-\\x7e]{32,200}");

    /** A key of this member. */
    record Own(byte[] publicKey, byte[] secretKey) {
        @Override
        public String toString() {
            return HexFormat.of().formatHex(publicKey);
        }
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
        String token = SecretFile.read(tokenFile).strip();
        if (!TOKEN.matcher(token).matches()) {
            throw new IOException(tokenFile
                    + " has no token of 32 to 200 visible ASCII characters; imap-wal keys token"
                    + " makes one");
        }
        return token;
    }

    /** The key in hexadecimal digits; null: it is not a key. */
    static byte[] key(String hex) {
        if (hex.length() != 2 * KEY_BYTES) {
            return null;
        }
        try {
            return HexFormat.of().parseHex(hex);
        } catch (IllegalArgumentException e) {
            return null;
        }
    }

    @Override
    public String toString() {
        return "key " + keyFile + ", token " + tokenFile;
    }
}
