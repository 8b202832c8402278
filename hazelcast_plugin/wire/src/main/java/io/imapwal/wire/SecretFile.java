package io.imapwal.wire;

import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileSystemLoopException;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Deque;
import java.util.Map;

/**
 * Reads a file of secrets, which only root or the user of this process may have written. The owner
 * of the file, and users that may write to a folder above it, decide its content. So each part of
 * the path is checked, through symbolic links. The rules, and their reasons, are those of
 * {@code imap_wal/security/secret_files.py}.
 */
final class SecretFile {
    private static final int BYTES_MAX = 1 << 16;
    private static final int LINKS_MAX = 40;
    private static final int TYPE = 0170000;
    private static final int FOLDER = 0040000;
    private static final int LINK = 0120000;
    private static final int STICKY = 01000;
    private static final int OTHERS_WRITE = 0022;
    private static final int OTHERS_OPEN = 0077;
    private static final int GROUP_READS = 0040;
    private static final int ROOT = 0;

    private final String name;
    private final int user;

    /** @param user the number of the user of this process */
    SecretFile(String name, int user) {
        this.name = name;
        this.user = user;
    }

    /**
     * @throws IOException if the file cannot be read, or if another user may read or replace it;
     *         never with its content
     */
    static String read(String name) throws IOException {
        try {
            boolean posix = Paths.get(name).getFileSystem().supportedFileAttributeViews()
                    .contains("unix");
            return new SecretFile(name, posix ? user() : ROOT).read(posix);
        } catch (NoSuchFileException e) {
            throw new IOException(name + " does not exist", e);
        } catch (CharacterCodingException | InvalidPathException e) {
            throw new IOException(name + " is not a file of a key or a token", e);
        }
    }

    String read(boolean posix) throws IOException {
        Path path = posix ? resolved() : Paths.get(name);
        if (!Files.isRegularFile(path)) {
            throw new IOException(name + " is not a file of a key or a token");
        }
        byte[] content;
        try (InputStream input = Files.newInputStream(path)) {
            content = new byte[BYTES_MAX + 1];
            int read = 0;
            for (int part = 0; part >= 0 && read < content.length; read += Math.max(0, part)) {
                part = input.read(content, read, content.length - read);
            }
            content = Arrays.copyOf(content, read);
        }
        if (content.length > BYTES_MAX) {
            throw new IOException(name + " is not a file of a key or a token: it has more than "
                    + BYTES_MAX + " bytes");
        }
        return StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(content)).toString();
    }

    /** The path without links, all parts of which were checked. */
    private Path resolved() throws IOException {
        Deque<Path> left = new ArrayDeque<>();
        push(left, Paths.get(name).toAbsolutePath());
        Path at = Paths.get("/");
        check(at, Status.of(at));
        int links = 0;
        while (!left.isEmpty()) {
            String part = left.pop().toString();
            if (part.equals(".") || part.isEmpty()) {
                continue;
            }
            if (part.equals("..")) {
                at = at.getParent() == null ? at : at.getParent();
                continue;
            }
            Path here = at.resolve(part);
            Status found = Status.of(here);
            check(here, found);
            if (found.type() != LINK) {
                at = here;
                continue;
            }
            if (++links > LINKS_MAX) {
                throw new FileSystemLoopException(name);
            }
            Path target = Files.readSymbolicLink(here);
            at = target.isAbsolute() ? Paths.get("/") : at;
            push(left, target);
        }
        return at;
    }

    private static void push(Deque<Path> left, Path path) {
        for (int each = path.getNameCount() - 1; each >= 0; each--) {
            left.push(path.getName(each));
        }
    }

    private void check(Path here, Status found) throws IOException {
        if (found.owner != ROOT && found.owner != user) {
            String allowed = user == ROOT ? "root" : "root or user " + user
                    + ", who runs this process";
            throw new IOException(name + " has a secret, and " + here + " belongs to user "
                    + found.owner + ", not to " + allowed
                    + "; check it, then run: chown -h " + user + " " + here);
        }
        if (found.type() == LINK) {
            return;
        }
        if (found.type() == FOLDER) {
            if ((found.mode & OTHERS_WRITE) != 0 && (found.mode & STICKY) == 0) {
                throw new IOException(name
                        + " has a secret, and other users may write to the folder " + here
                        + "; run: chmod go-w " + here);
            }
            return;
        }
        int refused = found.owner == ROOT ? OTHERS_OPEN & ~GROUP_READS : OTHERS_OPEN;
        if ((found.mode & refused) != 0) {
            throw new IOException(name
                    + " has a secret, and other users may open it; run: chmod go= " + here);
        }
    }

    /**
     * The number of the user of this process. {@code user.name} is not used: everyone who starts
     * the JVM can set it, and it is unknown for a number without a name.
     */
    static int user() throws IOException {
        Path self = Paths.get("/proc/self");
        if (Files.exists(self)) {
            return (Integer) Files.getAttribute(self, "unix:uid");
        }
        try {  // By name: Java 8 has the class, but not among those to compile with.
            Object system = Class.forName("com.sun.security.auth.module.UnixSystem")
                    .getConstructor().newInstance();
            return ((Long) system.getClass().getMethod("getUid").invoke(system)).intValue();
        } catch (ReflectiveOperationException e) {
            throw new IOException("the user of this process cannot be found", e);
        }
    }

    private static final class Status {
        private final int owner;
        private final int mode;

        private Status(int owner, int mode) {
            this.owner = owner;
            this.mode = mode;
        }

        static Status of(Path path) throws IOException {
            Map<String, Object> found =
                    Files.readAttributes(path, "unix:uid,mode", LinkOption.NOFOLLOW_LINKS);
            return new Status((Integer) found.get("uid"), (Integer) found.get("mode"));
        }

        int type() {
            return mode & TYPE;
        }
    }
}
