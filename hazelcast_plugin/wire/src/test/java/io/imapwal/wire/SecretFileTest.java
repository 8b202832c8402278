package io.imapwal.wire;

import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

/**
 * Attack: another user of the machine owns or replaces a file of secrets. The same as
 * tests/hostile/test_own_a_secret.py.
 */
class SecretFileTest {
    private static final int OTHER = 65534;

    @TempDir
    Path folder;
    private Path secret;

    @BeforeEach
    void write() throws IOException {
        Files.createDirectories(folder.resolve("a/b"));
        secret = Files.writeString(folder.resolve("a/b/secret"), "text");
        mode(secret, "rw-------");
    }

    private static void mode(Path path, String permissions) throws IOException {
        Files.setPosixFilePermissions(path, PosixFilePermissions.fromString(permissions));
    }

    private static String refusal(Path path) {
        return assertThrows(IOException.class, () -> SecretFile.read(path.toString())).getMessage();
    }

    @Test
    void fileOfAnotherUserIsRefused() throws IOException {
        assumeTrue(SecretFile.user() == 0, "only root can give a file to another user");
        for (Path part : new Path[] {secret, secret.getParent(), folder.resolve("a"), folder}) {
            Files.setAttribute(part, "unix:uid", OTHER);
            assertTrue(refusal(secret).contains(part + " belongs to user " + OTHER
                    + ", not to root; check it, then run: chown -h 0 " + part));
            Files.setAttribute(part, "unix:uid", 0);
        }
        assertEquals("text", SecretFile.read(secret.toString()));
    }

    @ParameterizedTest
    @ValueSource(strings = {"rwxrwx---", "rwx----w-"})
    void folderWritableByOthersIsRefused(String permissions) throws IOException {
        Path above = folder.resolve("a");
        mode(above, permissions);
        assertTrue(refusal(secret).endsWith("other users may write to the folder " + above
                + "; run: chmod go-w " + above));
        Files.setAttribute(above, "unix:mode", 01777);
        assertEquals("text", SecretFile.read(secret.toString()));
    }

    @Test
    void groupMayReadOnlySecretsOfRoot() throws IOException {
        assumeTrue(SecretFile.user() == 0, "only root can give a file to another user");
        mode(secret, "r--r-----");
        assertEquals("text", new SecretFile(secret.toString(), 1000).read(true));
        Files.setAttribute(secret, "unix:uid", 1000);
        assertTrue(assertThrows(IOException.class, () ->
                new SecretFile(secret.toString(), 1000).read(true)).getMessage()
                .endsWith("other users may open it; run: chmod go= " + secret));
    }

    @Test
    void secretOfKubernetesIsReadThroughLinks() throws IOException {
        Path data = Files.createSymbolicLink(folder.resolve("..data"), Path.of("a/b"));
        Path link = Files.createSymbolicLink(folder.resolve("token"),
                data.getFileName().resolve("secret"));
        assertEquals("text", SecretFile.read(link.toString()));
        assertEquals("text", SecretFile.read(folder.resolve("a/../token").toString()));
    }

    @Test
    void circularLinksAndFoldersAreErrors() throws IOException {
        Files.createSymbolicLink(folder.resolve("c"), Path.of("d"));
        Files.createSymbolicLink(folder.resolve("d"), Path.of("c"));
        assertThrows(IOException.class, () -> SecretFile.read(folder.resolve("c").toString()));
        assertTrue(refusal(folder).contains("is not a file of a key or a token"));
        assertTrue(refusal(folder.resolve("none")).endsWith("none does not exist"));
    }
}
