package io.imapwal.hazelcast.append;

/**
 * Acknowledged changes that fewer nodes had than there should be copies.
 *
 * @param underCopied all of them, since the member started
 * @param copiedAgain those of which there are as many copies now
 * @param waiting     those that will be copied again
 */
record CopyCounts(long underCopied, long copiedAgain, long waiting) {
    /** There is only one copy. */
    static final CopyCounts NONE = new CopyCounts(0, 0, 0);
}
