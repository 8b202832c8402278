package io.imapwal.hazelcast.member;

import io.imapwal.wire.MsgpackWriter;

import java.util.List;

/** Answers of a {@link FakeAgent}: header and payload. */
public final class FakeAnswers {
    /** Closes the connection instead of an answer. */
    static final List<byte[]> BREAK = List.of();
    private static final byte[] NO_PAYLOAD = new byte[0];

    private FakeAnswers() {
    }

    /** The beginning of a header. The caller adds its other fields. */
    public static MsgpackWriter header(String kind, long number, int fields) {
        return new MsgpackWriter().array(2 + fields).string(kind).integer(number);
    }

    public static List<byte[]> answer(MsgpackWriter header) {
        return List.of(header.toByteArray(), NO_PAYLOAD);
    }

    public static List<byte[]> answer(MsgpackWriter header, MsgpackWriter payload) {
        return List.of(header.toByteArray(), payload.toByteArray());
    }

    static List<byte[]> ack(long number, long first, long count) {
        return answer(header("ack", number, 2).integer(first).integer(count));
    }

    public static List<byte[]> error(long number, String code, String text) {
        return answer(header("error", number, 2).string(code).string(text));
    }
}
