package io.imapwal.hazelcast;

import java.io.IOException;

/** A listing of keys that cannot go on, or that lacks keys. It must begin again: what it gave so far may not be all. */
final class ListingGone extends IOException {
    private static final long serialVersionUID = 1L;

    ListingGone(String text, Throwable cause) {
        super(text, cause);
    }
}
