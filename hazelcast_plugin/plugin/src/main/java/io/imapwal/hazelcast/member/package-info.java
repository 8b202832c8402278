/** Puts the plug-in into a member: map store, configuration, hooks in Hazelcast. */
package io.imapwal.hazelcast.member;
