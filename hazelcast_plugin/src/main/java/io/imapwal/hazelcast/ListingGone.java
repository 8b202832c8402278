package io.imapwal.hazelcast;

import java.io.IOException;

/**
 * A listing of keys cannot continue, or keys are missing from it. The caller must begin a new
 * listing.
 */
final class ListingGone extends IOException {
    private static final long serialVersionUID = 1L;

    ListingGone(String text, Throwable cause) {
        super(text, cause);
    }
}
