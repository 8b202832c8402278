package io.imapwal.hazelcast.member;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

/** Names, separated by commas, in which {@code *} matches any characters. */
final class NamePatterns {
    private final List<String> texts = new ArrayList<>();
    private final List<Pattern> patterns = new ArrayList<>();

    private NamePatterns() {
    }

    static NamePatterns parse(String text) {
        NamePatterns parsed = new NamePatterns();
        for (String part : text.split(",")) {
            String name = part.strip();
            if (!name.isEmpty()) {
                parsed.texts.add(name);
                parsed.patterns.add(Pattern.compile(Arrays.stream(name.split("\\*", -1))
                        .map(Pattern::quote).collect(Collectors.joining(".*")), Pattern.DOTALL));
            }
        }
        return parsed;
    }

    boolean match(String name) {
        return patterns.stream().anyMatch(pattern -> pattern.matcher(name).matches());
    }

    List<String> texts() {
        return texts;
    }
}
