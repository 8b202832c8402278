"""Deliberate defects of the plug-in, each with the test that must catch it: class and method."""

from __future__ import annotations

from tests.faults.mutation import Mutation

_JAVA = "hazelcast_plugin/plugin/src/main/java/io/imapwal/hazelcast"
_WIRE = "hazelcast_plugin/wire/src/main/java/io/imapwal/wire"

IN_JAVA = (
    Mutation(
        "a section without a map store takes its map out of the log",
        f"{_JAVA}/member/DurableMaps.java",
        "return found instanceof MapConfig section && DEFAULT.equals(fallback)",
        "return found instanceof MapConfig section && DEFAULT.equals(section.getName())",
        "DurableMapsTest#everyMapIsDurableWhateverSectionItHas",
    ),
    Mutation(
        "a map that opted out by name is durable if its section names the map store",
        f"{_JAVA}/member/DurableMaps.java",
        "if (settings.transients().match(map)) {",
        "if (settings.transients().match(map) && !isOurs(section)) {",
        "DurableMapsTest#transientMapsAreNotLoggedWithAnySection",
    ),
    Mutation(
        "Hazelcast's own maps are durable",
        f"{_JAVA}/member/DurableMaps.java",
        "        if (MemberSettings.isInternal(map)) {\n",
        "        if (MemberSettings.isInternal(map) && !isOurs(section)) {\n",
        "DurableMapsTest#mapsOfHazelcastAreNotDurable",
    ),
    Mutation(
        "a structure that must be refused is created",
        f"{_JAVA}/member/MemberSettings.java",
        'return text.equals("refuse");',
        "return false;",
        "StructuresTest#refusedStructuresAreNotCreated",
    ),
    Mutation(
        "no one looks for the jobs that the log has",
        f"{_JAVA}/member/MapServiceHooks.java",
        "        if (durability.durableJobs()) {\n",
        "        if (durability.durableJobs() && nodeEngine == null) {\n",
        "DurableJobTest#aJobGoesOnFromItsLastSnapshot",
    ),
    Mutation(
        "a queue is not read again when its partition was settled again",
        f"{_JAVA}/structures/LoggedItems.java",
        "return loaded && losses == state().wholeness().losses()",
        "return loaded && losses <= state().wholeness().losses()",
        "DurableQueueTest#aQueueIsReadAgainAfterAnotherSettlement",
    ),
    Mutation(
        "a queue is not read again after an unknown outcome",
        f"{_JAVA}/structures/LoggedItems.java",
        "            // The reconciler sets the entries; then they are loaded again.\n"
        "            loaded = false;\n",
        "",
        "DurableQueueTest#anItemOfUnknownOutcomeIsReadFromTheLog",
    ),
    Mutation(
        "who waits for an item is not told of one that the log had",
        f"{_JAVA}/structures/LoggedQueue.java",
        "        notify(getPollWaitNotifyKey());\n",
        "",
        "DurableQueueTest#anItemOfUnknownOutcomeIsReadFromTheLog",
    ),
    Mutation(
        "a transaction commits a poll that is not logged",
        f"{_JAVA}/structures/LoggedQueue.java",
        "        store.logBefore(id, null);\n",
        "",
        "DurableQueueTest#aTransactionFailsIfItsChangesAreNotLogged",
    ),
    Mutation(
        "a transaction commits without what it had reserved",
        f"{_JAVA}/structures/LoggedQueue.java",
        "    public Data txnCommitPoll(long id) {\n        txnCheckReserve(id);\n",
        "    public Data txnCommitPoll(long id) {\n",
        "DurableQueueTest#aTransactionFailsIfTheQueueHasAnotherOwner",
    ),
    Mutation(
        "a destroyed queue comes back from the log",
        f"{_JAVA}/structures/LoggedQueues.java",
        "        if (structures.isDurable(Kind.QUEUE, (String) name)) {\n",
        "        if (structures.isDurable(Kind.QUEUE, (String) name) && name == null) {\n",
        "DurableQueueTest#aDestroyedQueueIsEmptyAfterARestart",
    ),
    Mutation(
        "the log keeps every item that a ringbuffer has had",
        f"{_JAVA}/structures/LoggedRingbuffer.java",
        "        items.change(set, replaced);\n",
        "        items.change(set, List.of());\n",
        "DurableRingbufferTest#theLogKeepsAsManyItemsAsTheRingbuffer",
    ),
    Mutation(
        "sequences begin again when all items have expired",
        f"{_JAVA}/structures/LoggedRingbuffer.java",
        "if (ttlMs > 0) {",
        "if (ttlMs < 0) {",
        "DurableRingbufferTest#sequencesGoOnAfterAllItemsHaveExpired",
    ),
    Mutation(
        "items from before a queue was durable are lost",
        f"{_JAVA}/structures/LoggedQueue.java",
        "                addAll(before);\n",
        "",
        "DurableQueueTest#itemsFromBeforeAQueueWasDurableAreLogged",
    ),
    Mutation(
        "an agent that begins again in an older copy of its log is greeted",
        f"{_WIRE}/Acknowledged.java",
        "if (counted >= 0 && counted < request) {",
        "if (counted >= 0 && counted < 0) {",
        "StoreFaultsTest#olderCopyOfTheLogIsRefused",
    ),
    Mutation(
        "a welcome must have what was acknowledged after its hello",
        f"{_WIRE}/AgentConnection.java",
        "            acknowledged.require(connection.session);",
        "            identity.acknowledged.require(connection.session);",
        "StoreFaultsTest#changeDuringHelloIsNoOlderCopy",
    ),
    Mutation(
        "an older copy without the session that acknowledged is greeted",
        f"{_WIRE}/Acknowledged.java",
        "counted < 0 && welcome.incarnation() < session.incarnation()",
        "counted < 0 && welcome.incarnation() < 0",
        "AcknowledgedTest#noLogReturnsToAnEarlierView",
    ),
    Mutation(
        "a welcome must have what a crash may have lost",
        f"{_WIRE}/Acknowledged.java",
        "return acknowledging.durable() && !acknowledging.shared()",
        "return !acknowledging.shared()",
        "AcknowledgedTest#onlyDurableAcknowledgementsCount",
    ),
    Mutation(
        "a log without the view of the member's cluster is used",
        f"{_WIRE}/AgentConnection.java",
        "if (connection.session.incarnation() < view) {",
        "if (connection.session.incarnation() < 0) {",
        "ViewTest#logWithoutTheKnownViewIsNotUsed",
    ),
    Mutation(
        "a load that fails while it is asked whether it has ended has loaded everything",
        f"{_JAVA}/member/UserLoad.java",
        "        boolean done = load.isDone();\n        Failure last = failure;\n",
        "        Failure last = failure;\n        boolean done = load.isDone();\n",
        "UserLoadTest#failureIsKnownWhenTheLoadHasEnded",
    ),
    Mutation(
        "a member that leaves claims a view with its cleared list of members",
        f"{_JAVA}/engine/ThisMember.java",
        "if (leaving || !cluster.isPresent(membership)) {",
        "if (!cluster.isPresent(membership)) {",
        "ClusterTest#memberThatLeavesClaimsNoView",
    ),
    Mutation(
        "a map that the agent refuses keeps its other maps from being restored",
        f"{_JAVA}/settle/SettlementWorker.java",
        "return reason instanceof AgentError error ? !error.connectionStays()",
        "return reason instanceof AgentError error ? error.connectionStays()",
        "OpeningTest#refusedMapDelaysNoOtherMap",
    ),
    Mutation(
        "a key of low order is accepted: anyone could seal messages of the agent",
        f"{_WIRE}/SecretBox.java",
        "        if (bits == 0) {\n",
        "        if (bits == 256) {\n",
        "SecretBoxTest#publicKeyOfLowOrderIsRefused",
    ),
    Mutation(
        "a changed message is opened",
        f"{_WIRE}/SecretBox.java",
        "difference |= tag[i] ^ sealed[i];",
        "difference |= tag[i] ^ tag[i];",
        "SecretBoxTest#anotherImplementationOpensWhatWasSealed",
    ),
    Mutation(
        "a secret key is used with all of its bits",
        f"{_WIRE}/X25519.java",
        "        bits[0] &= (byte) 248;\n",
        "",
        "SecretBoxTest#pointsOfTheSpecificationAreMultiplied",
    ),
)
