package io.imapwal.wire;

import java.io.IOException;

/**
 * A listing of keys cannot continue, or keys are missing from it. The caller must begin a new
 * listing.
 */
public final class ListingGone extends IOException {
    private static final long serialVersionUID = 1L;

    public ListingGone(String text, Throwable cause) {
        super(text, cause);
    }
}
