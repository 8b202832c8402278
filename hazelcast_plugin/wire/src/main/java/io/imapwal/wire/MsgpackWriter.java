package io.imapwal.wire;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/**
 * Writes the part of msgpack that the protocol uses: nil, bool, int, str, bin, array and map,
 * always in the shortest form.
 */
public final class MsgpackWriter {
    private byte[] bytes;
    private int length;

    public MsgpackWriter() {
        this(256);
    }

    public MsgpackWriter(int capacity) {
        bytes = new byte[capacity];
    }

    public int length() {
        return length;
    }

    /** The backing array; its first {@link #length()} bytes count. */
    public byte[] array() {
        return bytes;
    }

    public byte[] toByteArray() {
        return Arrays.copyOf(bytes, length);
    }

    public MsgpackWriter clear() {
        length = 0;
        return this;
    }

    public MsgpackWriter nil() {
        return put(0xc0);
    }

    public MsgpackWriter bool(boolean value) {
        return put(value ? 0xc3 : 0xc2);
    }

    public MsgpackWriter integer(long value) {
        if (value >= 0) {
            if (value < 0x80) {
                return put((int) value);
            } else if (value < 0x100) {
                return put(0xcc).big(value, 1);
            } else if (value < 0x10000) {
                return put(0xcd).big(value, 2);
            } else if (value < 0x1_0000_0000L) {
                return put(0xce).big(value, 4);
            }
            return put(0xcf).big(value, 8);
        } else if (value >= -32) {
            return put((int) value);
        } else if (value >= Byte.MIN_VALUE) {
            return put(0xd0).big(value, 1);
        } else if (value >= Short.MIN_VALUE) {
            return put(0xd1).big(value, 2);
        } else if (value >= Integer.MIN_VALUE) {
            return put(0xd2).big(value, 4);
        }
        return put(0xd3).big(value, 8);
    }

    public MsgpackWriter string(String value) {
        return string(value.getBytes(StandardCharsets.UTF_8));
    }

    /** A string in UTF-8 bytes. */
    public MsgpackWriter string(byte[] utf8) {
        int size = utf8.length;
        if (size < 32) {
            put(0xa0 | size);
        } else if (size < 0x100) {
            put(0xd9).big(size, 1);
        } else if (size < 0x10000) {
            put(0xda).big(size, 2);
        } else {
            put(0xdb).big(size, 4);
        }
        return raw(utf8, 0, size);
    }

    public MsgpackWriter binary(byte[] value) {
        int size = value.length;
        if (size < 0x100) {
            put(0xc4).big(size, 1);
        } else if (size < 0x10000) {
            put(0xc5).big(size, 2);
        } else {
            put(0xc6).big(size, 4);
        }
        return raw(value, 0, size);
    }

    public MsgpackWriter array(int size) {
        if (size < 16) {
            return put(0x90 | size);
        } else if (size < 0x10000) {
            return put(0xdc).big(size, 2);
        }
        return put(0xdd).big(size, 4);
    }

    public MsgpackWriter map(int size) {
        if (size < 16) {
            return put(0x80 | size);
        } else if (size < 0x10000) {
            return put(0xde).big(size, 2);
        }
        return put(0xdf).big(size, 4);
    }

    /** Bytes that are msgpack already. */
    public MsgpackWriter raw(byte[] source, int offset, int size) {
        ensure(size);
        System.arraycopy(source, offset, bytes, length, size);
        length += size;
        return this;
    }

    private MsgpackWriter put(int value) {
        ensure(1);
        bytes[length++] = (byte) value;
        return this;
    }

    private MsgpackWriter big(long value, int size) {
        ensure(size);
        for (int shift = (size - 1) * 8; shift >= 0; shift -= 8) {
            bytes[length++] = (byte) (value >>> shift);
        }
        return this;
    }

    private void ensure(int more) {
        if (bytes.length - length < more) {
            bytes = Arrays.copyOf(bytes, (int) Math.min(Integer.MAX_VALUE - 8,
                    Math.max(bytes.length * 2L, (long) length + more)));
        }
    }
}
