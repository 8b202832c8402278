package io.imapwal.hazelcast;

import com.tngtech.archunit.core.domain.JavaClass;
import com.tngtech.archunit.core.domain.JavaClasses;
import com.tngtech.archunit.core.importer.ClassFileImporter;
import com.tngtech.archunit.core.importer.ImportOption;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

import static com.tngtech.archunit.lang.syntax.ArchRuleDefinition.noClasses;
import static com.tngtech.archunit.library.Architectures.layeredArchitecture;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** The arrows between packages go one way, so there is no cycle (decision 83). */
class ArchitectureTest {
    private static final String ROOT = "io.imapwal.hazelcast";
    private static final int CYCLE_MAX = 3;
    private static JavaClasses classes;

    @BeforeAll
    static void read() {
        classes = new ClassFileImporter()
                .withImportOption(new ImportOption.DoNotIncludeTests())
                .withImportOption(location -> !location.contains("-tests.jar"))
                .importPackages("io.imapwal");
    }

    @Test
    void eachPackageUsesOnlyThoseBelowIt() {
        layeredArchitecture().consideringOnlyDependenciesInLayers()
                .layer("wire").definedBy("io.imapwal.wire")
                .layer("errors").definedBy(ROOT)
                .layer("engine").definedBy(ROOT + ".engine")
                .layer("read").definedBy(ROOT + ".read")
                .layer("append").definedBy(ROOT + ".append")
                .layer("settle").definedBy(ROOT + ".settle")
                .layer("transactions").definedBy(ROOT + ".transactions")
                .layer("structures").definedBy(ROOT + ".structures")
                .layer("member").definedBy(ROOT + ".member")
                .ensureAllClassesAreContainedInArchitecture()
                .whereLayer("wire").mayNotAccessAnyLayer()
                .whereLayer("errors").mayNotAccessAnyLayer()
                .whereLayer("engine").mayOnlyAccessLayers("wire", "errors")
                .whereLayer("read").mayOnlyAccessLayers("engine", "wire", "errors")
                .whereLayer("append").mayOnlyAccessLayers("engine", "wire", "errors")
                .whereLayer("settle")
                .mayOnlyAccessLayers("append", "read", "engine", "wire", "errors")
                .whereLayer("transactions")
                .mayOnlyAccessLayers("settle", "append", "read", "engine", "wire", "errors")
                .whereLayer("structures")
                .mayOnlyAccessLayers("settle", "append", "read", "engine", "wire", "errors")
                .whereLayer("member").mayNotBeAccessedByAnyLayer()
                .check(classes);
    }

    /** Each of the others can be read with those below it. */
    @Test
    void noMoreThanThreeClassesFormACycle() {
        Map<String, Set<String>> uses = new HashMap<>();
        classes.forEach(user -> user.getDirectDependenciesFromSelf().forEach(dependency -> {
            String used = outermost(dependency.getTargetClass());
            if (used.startsWith("io.imapwal.")) {
                uses.computeIfAbsent(outermost(user), name -> new HashSet<>()).add(used);
            }
        }));
        Map<String, Set<String>> reached = new HashMap<>();
        uses.keySet().forEach(name -> reached.put(name, reached(name, uses)));
        reached.forEach((name, others) -> {
            Set<String> cycle = new TreeSet<>(others);
            cycle.removeIf(other -> !reached.getOrDefault(other, Set.of()).contains(name));
            assertTrue(cycle.size() <= CYCLE_MAX, () -> "a cycle of classes: " + cycle);
        });
    }

    private static String outermost(JavaClass type) {
        return type.getBaseComponentType().getName().replaceFirst("\\$.*", "");
    }

    private static Set<String> reached(String from, Map<String, Set<String>> uses) {
        Set<String> reached = new HashSet<>();
        Deque<String> left = new ArrayDeque<>(List.of(from));
        while (!left.isEmpty()) {
            for (String used : uses.getOrDefault(left.pop(), Set.of())) {
                if (reached.add(used)) {
                    left.push(used);
                }
            }
        }
        return reached;
    }

    /** A client for another engine shares it. */
    @Test
    void wireDoesNotKnowHazelcast() {
        noClasses().that().resideInAPackage("io.imapwal.wire").should().dependOnClassesThat()
                .resideInAnyPackage("com.hazelcast..", ROOT + "..").check(classes);
    }
}
