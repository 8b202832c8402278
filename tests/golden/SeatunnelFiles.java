import java.io.Serializable;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import org.apache.seatunnel.engine.imap.storage.file.IMapFileStorage;
import org.apache.seatunnel.engine.serializer.protobuf.ProtoStuffSerializer;

/**
 * Makes seatunnel-imap.zip: files of SeaTunnel's own classes, and what they load from them. It ran
 * once, on Java 17, with imap-storage-file 2.3.8, seatunnel-hadoop3-3.1.4-uber 2.3.8 (optional) and
 * guava 27.0-jre from Maven Central: java -cp ... SeatunnelFiles FOLDER, in which it makes imap and
 * loaded.txt
 */
public class SeatunnelFiles {
    /** As the engine's PipelineLocation. */
    public static class Place implements Serializable {
        private long jobId;
        private int pipelineId;

        Place(long jobId, int pipelineId) {
            this.jobId = jobId;
            this.pipelineId = pipelineId;
        }

        @Override
        public boolean equals(Object other) {
            return other instanceof Place
                    && ((Place) other).jobId == jobId
                    && ((Place) other).pipelineId == pipelineId;
        }

        @Override
        public int hashCode() {
            return Long.hashCode(jobId) + pipelineId;
        }
    }

    private static final ProtoStuffSerializer SERIALIZER = new ProtoStuffSerializer();
    private static Path folder;

    public static void main(String[] arguments) throws Exception {
        folder = Paths.get(arguments[0]).toAbsolutePath();
        IMapFileStorage first = opened("engine_runningJobState");
        for (int turn = 0; turn < 3; turn++) {
            for (long job = -1; job < 4; job++) {
                demand(first.store(job, "state " + turn + " of " + job));
                demand(first.store(new Place(job, turn), job * 1000 + turn));
            }
            Thread.sleep(2);
        }
        demand(first.delete(2L));
        demand(first.delete(new Place(2, 2)));
        first.destroy(false);
        IMapFileStorage second = opened("engine_runningJobState");
        demand(second.store(1L, "of the second start, é"));
        demand(second.delete(3L));
        demand(second.store(2L, "is back"));
        Map<String, Object> kinds = new HashMap<>();
        kinds.put("truth", true);
        kinds.put("integer", -5);
        kinds.put("double", -1.5);
        kinds.put("long", Long.MIN_VALUE);
        kinds.put("", "");
        IMapFileStorage other = opened("engine_checkpoint-id-map");
        for (Map.Entry<String, Object> kind : kinds.entrySet()) {
            demand(other.store(kind.getKey(), kind.getValue()));
        }
        demand(other.store(true, 7));
        StringBuilder text = new StringBuilder();
        print("engine_runningJobState", second, text);
        print("engine_checkpoint-id-map", other, text);
        Files.write(folder.resolve("loaded.txt"), text.toString().getBytes("UTF-8"));
        second.destroy(false);
        other.destroy(false);
        System.exit(0);
    }

    private static IMapFileStorage opened(String map) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("namespace", folder + "/imap");
        settings.put("clusterName", "zeta");
        settings.put("businessName", map);
        settings.put("storage.type", "hdfs");
        settings.put("fs.defaultFS", "file:///");
        IMapFileStorage storage = new IMapFileStorage();
        storage.initialize(settings);
        return storage;
    }

    /** Each entry that its loadAll returns, on a line: map, class and bytes of key and of value. */
    private static void print(String map, IMapFileStorage storage, StringBuilder text)
            throws Exception {
        Map<String, String> lines = new TreeMap<>();
        for (Map.Entry<Object, Object> entry : storage.loadAll().entrySet()) {
            lines.put(shown(entry.getKey()), shown(entry.getValue()));
        }
        lines.forEach((key, value) -> text.append(map + " " + key + " " + value + "\n"));
    }

    private static String shown(Object object) throws Exception {
        StringBuilder hex = new StringBuilder(object.getClass().getName() + " ");
        for (byte part : SERIALIZER.serialize(object)) {
            hex.append(String.format("%02x", part));
        }
        return hex.toString();
    }

    private static void demand(boolean stored) {
        if (!stored) {
            throw new IllegalStateException("not stored");
        }
    }
}
