package io.imapwal.wire;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Reads the part of msgpack that the protocol uses. Anything else is a {@link ProtocolException}.
 */
public final class MsgpackReader {
    private final byte[] bytes;
    private final int end;
    private int at;

    public MsgpackReader(byte[] bytes) {
        this(bytes, 0, bytes.length);
    }

    public MsgpackReader(byte[] bytes, int offset, int size) {
        this.bytes = bytes;
        this.at = offset;
        this.end = offset + size;
    }

    public boolean hasMore() {
        return at < end;
    }

    /** Reads a nil if one is next. */
    public boolean nil() throws ProtocolException {
        if (peek() == 0xc0) {
            at++;
            return true;
        }
        return false;
    }

    public boolean bool() throws ProtocolException {
        int type = next();
        if (type != 0xc2 && type != 0xc3) {
            throw unexpected("bool");
        }
        return type == 0xc3;
    }

    public long integer() throws ProtocolException {
        int type = next();
        if (type < 0x80) {
            return type;
        } else if (type >= 0xe0) {
            return (byte) type;
        }
        switch (type) {
            case 0xcc:
                return big(1);
            case 0xcd:
                return big(2);
            case 0xce:
                return big(4);
            case 0xcf:
                long value = big(8);
                if (value < 0) {
                    throw new ProtocolException("integer above 2^63-1");
                }
                return value;
            case 0xd0:
                return (byte) big(1);
            case 0xd1:
                return (short) big(2);
            case 0xd2:
                return (int) big(4);
            case 0xd3:
                return big(8);
            default:
                throw unexpected("int");
        }
    }

    public String string() throws ProtocolException {
        int type = next();
        int size = (type & 0xe0) == 0xa0 ? type & 0x1f
                : type == 0xd9 ? length(1) : length(type, 0xda, "str");
        int from = take(size);
        return new String(bytes, from, size, StandardCharsets.UTF_8);
    }

    public byte[] binary() throws ProtocolException {
        int type = next();
        int size = type == 0xc4 ? length(1) : length(type, 0xc5, "bin");
        int from = take(size);
        return Arrays.copyOfRange(bytes, from, from + size);
    }

    public int array() throws ProtocolException {
        int type = next();
        return (type & 0xf0) == 0x90 ? type & 0x0f : length(type, 0xdc, "array");
    }

    public int map() throws ProtocolException {
        int type = next();
        return (type & 0xf0) == 0x80 ? type & 0x0f : length(type, 0xde, "map");
    }

    /**
     * Any value: null, Boolean, Long, Double, String, byte[], List or Map. Floats are read because
     * {@code stat} may have some.
     */
    public Object value() throws ProtocolException {
        int type = peek();
        if (type == 0xc0) {
            at++;
            return null;
        } else if (type == 0xc2 || type == 0xc3) {
            return bool();
        } else if (type == 0xca) {
            at++;
            return (double) Float.intBitsToFloat((int) big(4));
        } else if (type == 0xcb) {
            at++;
            return Double.longBitsToDouble(big(8));
        } else if (type < 0x80 || type >= 0xe0 || (type >= 0xcc && type <= 0xd3)) {
            return integer();
        } else if ((type & 0xe0) == 0xa0 || (type >= 0xd9 && type <= 0xdb)) {
            return string();
        } else if (type >= 0xc4 && type <= 0xc6) {
            return binary();
        } else if ((type & 0xf0) == 0x90 || type == 0xdc || type == 0xdd) {
            int size = array();
            List<Object> list = new ArrayList<>(Math.min(size, 1024));
            for (int i = 0; i < size; i++) {
                list.add(value());
            }
            return list;
        } else if ((type & 0xf0) == 0x80 || type == 0xde || type == 0xdf) {
            int size = map();
            Map<Object, Object> map = new LinkedHashMap<>();
            for (int i = 0; i < size; i++) {
                Object key = value();
                map.put(key, value());
            }
            return map;
        }
        at++;
        throw unexpected("value");
    }

    /**
     * The bytes of the next value, of any type. A cursor is sent to the agent again without a
     * change.
     */
    public byte[] raw() throws ProtocolException {
        int from = at;
        value();
        return Arrays.copyOfRange(bytes, from, at);
    }

    private int peek() throws ProtocolException {
        if (at >= end) {
            throw new ProtocolException("message ends in the middle of a value");
        }
        return bytes[at] & 0xff;
    }

    private int next() throws ProtocolException {
        int type = peek();
        at++;
        return type;
    }

    private long big(int size) throws ProtocolException {
        int from = take(size);
        long value = 0;
        for (int i = 0; i < size; i++) {
            value = value << 8 | (bytes[from + i] & 0xff);
        }
        return value;
    }

    /** A length of 2 bytes after the type {@code two}, of 4 after the next one. */
    private int length(int type, int two, String wanted) throws ProtocolException {
        if (type != two && type != two + 1) {
            throw unexpected(wanted);
        }
        return length(type == two ? 2 : 4);
    }

    private int length(int size) throws ProtocolException {
        long value = big(size);
        if (value > Integer.MAX_VALUE) {
            throw new ProtocolException("length of " + value + " is more than a message can hold");
        }
        return (int) value;
    }

    private int take(int size) throws ProtocolException {
        if (size > end - at) {
            throw new ProtocolException("message ends in the middle of a value");
        }
        int from = at;
        at += size;
        return from;
    }

    private ProtocolException unexpected(String wanted) {
        return new ProtocolException(
                String.format("wanted %s at byte %d, found 0x%02x", wanted, at - 1, bytes[at - 1]));
    }
}
