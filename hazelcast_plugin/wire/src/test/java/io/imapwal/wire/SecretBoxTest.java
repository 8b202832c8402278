package io.imapwal.wire;

import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;
import software.pando.crypto.nacl.CryptoBox;

import java.security.Key;
import java.security.KeyPair;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.Random;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;

/** Our box, with the vectors of its specifications, and against Salty Coffee and Java's X25519. */
class SecretBoxTest {
    private static final HexFormat HEX = HexFormat.of();

    private static final byte[] ALICE = HEX.parseHex(
            "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a");
    private static final byte[] BOB = HEX.parseHex(
            "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb");

    /** RFC 7748, 5.2 and 6.1. */
    @ParameterizedTest
    @CsvSource({
        "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4,"
            + "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c,"
            + "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
        "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d,"
            + "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493,"
            + "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957",
        "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a,"
            + "0900000000000000000000000000000000000000000000000000000000000000,"
            + "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a",
        "0900000000000000000000000000000000000000000000000000000000000000,"
            + "0900000000000000000000000000000000000000000000000000000000000000,"
            + "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079",
    })
    void pointsOfTheSpecificationAreMultiplied(String scalar, String point, String result) {
        assertEquals(result, HEX.formatHex(
                X25519.multiply(HEX.parseHex(scalar), HEX.parseHex(point))));
    }

    /** RFC 7748, 5.2: each result is the next scalar, and each scalar the next point. */
    @Test
    @Tag("thorough")
    void thousandMultiplicationsHaveTheResultOfTheSpecification() {
        byte[] point = Arrays.copyOf(new byte[] {9}, X25519.BYTES);
        byte[] scalar = point;
        for (int i = 0; i < 1000; i++) {
            byte[] next = X25519.multiply(scalar, point);
            point = scalar;
            scalar = next;
        }
        assertEquals("684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51",
                HEX.formatHex(scalar));
    }

    /** From the tests of NaCl. */
    @Test
    void messageOfTheSpecificationIsSealed() throws Exception {
        byte[] nonce = HEX.parseHex("69696ee955b62b73cd62bda875fc73d68219e0036b7a0b37");
        byte[] message = HEX.parseHex("be075fc53c81f2d5cf141316ebeb0c7b5228c52a4c62cbd44b66849b6424"
                + "4ffce5ecbaaf33bd751a1ac728d45e6c61296cdc3c01233561f41db66cce314adb310e3be8250c46"
                + "f06dceea3a7fa1348057e2f6556ad6b1318a024a838f21af1fde048977eb48f59ffd4924ca1c6090"
                + "2e52f0a089bc76897040e082f937763848645e0705");
        String sealed = "f3ffc7703f9400e52a7dfb4b3d3305d98e993b9f48681273c29650ba32fc76ce48332ea716"
                + "4d96a4476fb8c531a1186ac0dfc17c98dce87b4da7f011ec48c97271d2c20f9b928fe2270d6fb863"
                + "d51738b48eeee314a7cc8ab932164548e526ae90224368517acfeabd6bb3732bc0e9da99832b61ca"
                + "01b6de56244a9e88d5f9b37973f622a43d14a6599b1f654cb45a74e355a5";
        assertEquals(sealed, HEX.formatHex(
                new SecretBox(ALICE, X25519.publicKey(BOB)).seal(nonce, message)));
        assertArrayEquals(message, new SecretBox(BOB, X25519.publicKey(ALICE))
                .open(nonce, HEX.parseHex(sealed), 0));
    }

    /** Sizes around the blocks of Salsa20 and Poly1305, and bytes that make carries likely. */
    @Test
    void anotherImplementationOpensWhatWasSealed() throws Exception {
        long seed = System.nanoTime();
        Random random = new Random(seed);
        for (int i = 0; i < 60; i++) {
            KeyPair theirs = CryptoBox.keyPair();
            byte[] secret = bytes(random, X25519.BYTES);
            byte[] publicKey = FakeCurveServer.bytes(theirs.getPublic());
            Key shared = CryptoBox.agree(theirs.getPrivate(),
                    CryptoBox.publicKey(X25519.publicKey(secret)));
            byte[] nonce = bytes(random, 24);
            byte[] message = bytes(random, i < 40 ? 2 * i : random.nextInt(5000));
            if (i % 3 == 0) {
                Arrays.fill(message, (byte) 0xff);
            }
            SecretBox box = new SecretBox(secret, publicKey);
            byte[] sealed = box.seal(nonce, message);
            String what = "seed " + seed + ", message " + i;
            assertArrayEquals(software.pando.crypto.nacl.SecretBox
                    .encrypt(shared, nonce, message).getCiphertextWithTag(), sealed, what);
            assertArrayEquals(message, box.open(nonce, sealed, 0), what);
            sealed[random.nextInt(sealed.length)] ^= (byte) (1 << random.nextInt(8));
            assertNull(box.open(nonce, sealed, 0), what);
            assertNull(box.open(nonce, sealed, random.nextInt(sealed.length) + 1), what);
        }
    }

    /** Also those that are not below 2^255 - 19. */
    @ParameterizedTest
    @ValueSource(strings = {
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0100000000000000000000000000000000000000000000000000000000000000",
        "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
        "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    })
    void publicKeyOfLowOrderIsRefused(String point) {
        assertThrows(ProtocolException.class, () -> new SecretBox(ALICE, HEX.parseHex(point)));
    }

    private static byte[] bytes(Random random, int size) {
        byte[] bytes = new byte[size];
        random.nextBytes(bytes);
        return bytes;
    }
}
