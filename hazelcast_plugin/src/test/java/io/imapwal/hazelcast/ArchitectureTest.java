package io.imapwal.hazelcast;

import com.tngtech.archunit.core.domain.JavaClasses;
import com.tngtech.archunit.core.importer.ClassFileImporter;
import com.tngtech.archunit.core.importer.ImportOption;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

import static com.tngtech.archunit.lang.syntax.ArchRuleDefinition.noClasses;
import static com.tngtech.archunit.library.Architectures.layeredArchitecture;

/** The arrows between packages go one way, so there is no cycle: docs/decisions/0083. */
class ArchitectureTest {
    private static final String ROOT = "io.imapwal.hazelcast";
    private static JavaClasses classes;

    @BeforeAll
    static void read() {
        classes = new ClassFileImporter()
                .withImportOption(new ImportOption.DoNotIncludeTests())
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
                .layer("member").definedBy(ROOT + ".member")
                .ensureAllClassesAreContainedInArchitectureIgnoring("software.pando..")
                .whereLayer("wire").mayNotAccessAnyLayer()
                .whereLayer("errors").mayNotAccessAnyLayer()
                .whereLayer("engine").mayOnlyAccessLayers("wire", "errors")
                .whereLayer("read").mayOnlyAccessLayers("engine", "wire", "errors")
                .whereLayer("append").mayOnlyAccessLayers("engine", "wire", "errors")
                .whereLayer("settle")
                .mayOnlyAccessLayers("append", "read", "engine", "wire", "errors")
                .whereLayer("transactions")
                .mayOnlyAccessLayers("settle", "append", "read", "engine", "wire", "errors")
                .whereLayer("member").mayNotBeAccessedByAnyLayer()
                .check(classes);
    }

    /** A client for another engine shares it. */
    @Test
    void wireDoesNotKnowHazelcast() {
        noClasses().that().resideInAPackage("io.imapwal.wire").should().dependOnClassesThat()
                .resideInAnyPackage("com.hazelcast..", ROOT + "..").check(classes);
    }
}
