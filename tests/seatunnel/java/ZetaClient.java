import com.hazelcast.client.config.ClientConfig;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.stream.Collectors;
import org.apache.seatunnel.common.config.Common;
import org.apache.seatunnel.common.config.DeployMode;
import org.apache.seatunnel.engine.client.SeaTunnelClient;
import org.apache.seatunnel.engine.client.job.JobClient;
import org.apache.seatunnel.engine.common.config.ConfigProvider;
import org.apache.seatunnel.engine.common.config.JobConfig;

/**
 * A client of SeaTunnel's engine: a request on each line of its standard input, an answer on each
 * line of its output, which is "ok …" or "error …".
 *
 * <pre>
 * submit FILE NAME    the job's number
 * status JOB          its state
 * cancel JOB
 * jobs                number and state of each, separated by commas
 * </pre>
 */
public final class ZetaClient {
    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        Common.setDeployMode(DeployMode.CLIENT);
        ClientConfig config = ConfigProvider.locateAndGetClientConfig();
        config.setClusterName("seatunnel");
        SeaTunnelClient client = new SeaTunnelClient(config);
        answers.println("ok ready");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null;) {
            try {
                answers.println("ok " + answer(client, line.split(" ")));
            } catch (Throwable e) {
                e.printStackTrace();
                answers.println("error " + String.valueOf(e).replace('\n', ' '));
            }
        }
        System.exit(0);
    }

    private static Object answer(SeaTunnelClient client, String[] words) throws Exception {
        JobClient jobs = client.getJobClient();
        switch (words[0]) {
            case "submit":
                JobConfig job = new JobConfig();
                job.setName(words[2]);
                return client.createExecutionContext(words[1], job,
                        ConfigProvider.locateAndGetSeaTunnelConfig()).execute().getJobId();
            case "status":
                return jobs.getJobStatus(Long.parseLong(words[1]));
            case "cancel":
                jobs.cancelJob(Long.parseLong(words[1]));
                return "";
            default:
                return jobs.listJobStatus(false).replace('\n', ' ');
        }
    }
}
