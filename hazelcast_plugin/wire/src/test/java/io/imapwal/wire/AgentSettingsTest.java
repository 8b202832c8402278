package io.imapwal.wire;

import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

import java.util.Properties;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

class AgentSettingsTest {

    private static Properties properties(String... namesAndValues) {
        Properties properties = new Properties();
        for (int i = 0; i < namesAndValues.length; i += 2) {
            properties.setProperty(namesAndValues[i], namesAndValues[i + 1]);
        }
        return properties;
    }

    @Test
    void mapNameWithoutUtf8FormIsRefused() {
        Properties properties = new Properties();
        properties.setProperty("agent", "ipc:///run/agent.sock");
        assertThrows(IllegalArgumentException.class, () ->
                AgentSettings.of("a\ud800b", properties));
    }

    @Test
    void agentIsTheOnlyRequiredProperty() {
        AgentSettings settings =
                AgentSettings.of("orders", properties("agent", " ipc:///run/a.sock "));
        assertEquals("/run/a.sock", settings.agent().path());
        assertEquals(10_000, settings.timeoutMs());
        assertEquals(2_000, settings.connectTimeoutMs());
        assertEquals(300_000, settings.restoreTimeoutMs());
        assertEquals(10_000, settings.restoreChunk());
        assertFalse(settings.readThrough());
    }

    @Test
    void allPropertiesAreRead() {
        AgentSettings settings = AgentSettings.of("orders",
                properties("agent", "tcp://[::1]:7701", "timeout-ms", "1", "connect-timeout-ms",
                "2", "restore-timeout-ms", "3", "read-through", "true", "restore-chunk", "4"));
        assertEquals("::1", settings.agent().host);
        assertEquals(7701, settings.agent().port);
        assertTrue(settings.readThrough());
        assertEquals(4, settings.restoreChunk());
    }

    @ParameterizedTest
    @CsvSource({"agent,''", "agent,http://x:1", "agent,tcp://x", "agent,tcp://x:0",
            "agent,tcp://:5", "agent,tcp://x:70000", "agent,ipc://relative",
        "timeout-ms,0", "timeout-ms,-1", "timeout-ms,5s", "timeout-ms,''", "connect-timeout-ms,x",
        "restore-timeout-ms,99999999999",
        "read-through,yes", "restore-chunk,0", "time-out-ms,5", "Agent,ipc:///x"})
    void wrongPropertyIsNamedWithItsMap(String name, String value) {
        Properties properties = properties("agent", "ipc:///run/a.sock");
        properties.setProperty(name, value);
        String message = assertThrows(IllegalArgumentException.class, () ->
                AgentSettings.of("orders", properties)).getMessage();
        assertTrue(message.contains("\"" + name + "\"") && message.contains("\"orders\""), message);
    }

    @ParameterizedTest
    @CsvSource({"m, 1024", "., 1024", "é, 512", "🙂, 256"})
    void tooLongMapNameIsRefused(String part, int most) {
        AgentSettings.of(part.repeat(most), properties("agent", "ipc:///run/a.sock"));
        String message = assertThrows(IllegalArgumentException.class,
                () -> AgentSettings.of(part.repeat(most + 1),
                    properties("agent", "ipc:///run/a.sock"))).getMessage();
        assertTrue(message.contains("at most 1024") && message.contains("\"" + part), message);
    }

    @Test
    void missingAgentIsNamed() {
        String message = assertThrows(IllegalArgumentException.class, () ->
                AgentSettings.of("orders", properties())).getMessage();
        assertTrue(message.contains("\"agent\"") && message.contains("\"orders\""), message);
    }

    private static AgentSettings copies(String own, String others, String... more) {
        Properties properties = properties(more);
        properties.setProperty("agent", own);
        properties.setProperty("copies", "2");
        properties.setProperty("copy-agents", others);
        return AgentSettings.of("orders", properties);
    }

    private static java.util.List<String> others(AgentSettings settings) {
        return settings.copies().others().stream().map(each -> each.endpoint.toString()).toList();
    }

    @Test
    void listOfAgentsBeginsAfterTheOwnOne() {
        String all = "ipc:///a, ipc:///b ,ipc:///c";
        assertEquals(java.util.List.of("ipc:///b", "ipc:///c"), others(copies("ipc:///a", all)));
        assertEquals(java.util.List.of("ipc:///c", "ipc:///a"), others(copies("ipc:///b", all)));
        assertEquals(java.util.List.of("ipc:///a", "ipc:///b"), others(copies("ipc:///c", all)));
        assertEquals(2, copies("ipc:///a", all).copies().acks());
        assertEquals(1, copies("ipc:///a", all, "acks", "1").copies().acks());
        assertEquals(16 << 20, copies("ipc:///a", all).copies().again());
        assertEquals(0, copies("ipc:///a", all, "copy-again-bytes", "0").copies().again());
        assertFalse(AgentSettings.of("m", properties("agent", "ipc:///a")).copies().shared());
    }

    @ParameterizedTest
    @CsvSource(delimiter = ';', value = {
        "copy-agents; ''", "copy-agents; ipc:///a", "copy-agents; http://x", "copies; 4",
        "copies; 0", "acks; 3", "acks; 0", "copy-agents; tcp://10.0.0.1:7", "copy-timeout-ms; 0",
        "copy-again-bytes; -1",
        "copy-agents; ipc:///b 00", "copy-agents; tcp://localhost:7 xyz"})
    void wrongCopiesAreNamed(String name, String value) {
        Properties properties = properties("agent", "ipc:///a", "copies", "2", "copy-agents",
                "ipc:///b");
        properties.setProperty(name, value);
        String message = assertThrows(IllegalArgumentException.class, () ->
                AgentSettings.of("orders", properties)).getMessage();
        assertTrue(message.contains("\"" + name + "\"") && message.contains("\"orders\""), message);
    }
}
