/**
 * Runs Hazelcast's own tests of maps, and gives the maps of their members a map store that the
 * tests do not know of.
 *
 * <pre>
 * Main ─▶ JUnit 4 ─▶ a test starts members ─▶ StoreService knows each of them
 *   │                       └─ getMap ─▶ findMapConfig, where ConfigAdvice calls
 *   │                                    Stores.added: the same configuration with a map store
 *   └─ Results: a line for each test
 * </pre>
 */
package io.imapwal.maptests;
