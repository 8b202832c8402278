package io.imapwal.maptests;

import org.junit.runner.Description;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

import java.io.IOException;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Writes a line for each event: "started", "passed", "failed" or "ignored", the test, and for a
 * finished test its milliseconds, how many map configurations got a map store meanwhile, and of a
 * failure the exception. A file without "done" is of a process that was ended.
 */
final class Results extends RunListener implements AutoCloseable {
    private final PrintWriter out;
    private final Map<String, long[]> started = new ConcurrentHashMap<>();
    private final Map<String, String> failures = new ConcurrentHashMap<>();

    Results(Path file) throws IOException {
        this.out = new PrintWriter(file.toFile(), StandardCharsets.UTF_8);
    }

    @Override
    public void testStarted(Description test) {
        started.put(name(test), new long[] {System.nanoTime(), Stores.GIVEN.get()});
        write("started", name(test));
    }

    @Override
    public void testFailure(Failure failure) {
        failure.getException().printStackTrace();
        failures.put(name(failure.getDescription()), String.valueOf(failure.getException()));
        if (!started.containsKey(name(failure.getDescription()))) {
            // The set-up or the end of the whole class failed.
            testFinished(failure.getDescription());
        }
    }

    @Override
    public void testAssumptionFailure(Failure failure) {
        testIgnored(failure.getDescription());
    }

    @Override
    public void testIgnored(Description test) {
        write("ignored", name(test));
    }

    @Override
    public void testFinished(Description test) {
        long[] began = started.getOrDefault(name(test),
                new long[] {System.nanoTime(), Stores.GIVEN.get()});
        String failure = failures.get(name(test));
        write(failure == null ? "passed" : "failed", name(test),
                String.valueOf((System.nanoTime() - began[0]) / 1_000_000),
                String.valueOf(Stores.GIVEN.get() - began[1]), failure == null ? "" : failure);
    }

    void done() {
        write("done", "");
    }

    @Override
    public void close() {
        out.close();
    }

    /** The short name of the class and the method, with its parameters. */
    private static String name(Description test) {
        String method = test.getMethodName();
        String type = test.getClassName();
        return type + (method == null ? "" : "#" + method);
    }

    private synchronized void write(String... fields) {
        for (int i = 0; i < fields.length; i++) {
            fields[i] = fields[i].replaceAll("\\s+", " ");
        }
        out.println(String.join("\t", fields));
        out.flush();
    }
}
