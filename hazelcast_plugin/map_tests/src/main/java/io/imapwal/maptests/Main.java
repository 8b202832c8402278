package io.imapwal.maptests;

import com.hazelcast.config.MapConfig;
import net.bytebuddy.agent.ByteBuddyAgent;
import net.bytebuddy.agent.builder.AgentBuilder;
import net.bytebuddy.asm.Advice;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.Request;
import org.junit.runner.manipulation.Filter;

import java.nio.file.Path;
import java.util.Arrays;
import java.util.Set;

import static net.bytebuddy.matcher.ElementMatchers.named;
import static net.bytebuddy.matcher.ElementMatchers.returns;

/**
 * Runs one class of tests. Arguments: the class, the file for the results, which map store ("wal",
 * "simple" or "none"), the socket at which agents are asked for, and the methods that do not run.
 */
public final class Main {
    private Main() {
    }

    public static void main(String[] args) throws Exception {
        Stores.use(args[2], Path.of(args[3]));
        install();
        try (Results results = new Results(Path.of(args[1]))) {
            JUnitCore core = new JUnitCore();
            core.addListener(results);
            core.run(Request.aClass(Class.forName(args[0])).filterWith(
                    except(Set.copyOf(Arrays.asList(args).subList(4, args.length)))));
            results.done();
        }
        // Threads that a test has left must not keep this process.
        Runtime.getRuntime().halt(0);
    }

    private static Filter except(Set<String> methods) {
        return new Filter() {
            @Override
            public boolean shouldRun(Description test) {
                // With parameters, the name is followed by them in brackets.
                return test.isSuite()
                        || !methods.contains(test.getMethodName().replaceFirst("\\[.*", ""));
            }

            @Override
            public String describe() {
                return "all except " + methods;
            }
        };
    }

    /** Each member asks an object of this class of its own for the configuration of a map. */
    private static void install() {
        new AgentBuilder.Default()
                .type(named("com.hazelcast.internal.dynamicconfig.DynamicConfigurationAwareConfig"))
                .transform((builder, type, loader, module, domain) -> builder.visit(
                        Advice.to(ConfigAdvice.class).on(named("findMapConfig")
                                .and(returns(MapConfig.class)))))
                .installOn(ByteBuddyAgent.install());
    }
}
