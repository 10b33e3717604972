import java.io.File;
import java.io.FileInputStream;
import java.io.InputStream;
import java.lang.reflect.Field;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.TimeUnit;

import kafka.cluster.Partition;
import kafka.log.LogManager;
import kafka.server.BrokerServer;
import kafka.server.KafkaConfig;
import kafka.server.KafkaRaftServer;

import org.apache.kafka.common.utils.Time;
import org.apache.kafka.storage.internals.log.UnifiedLog;

import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Starts nodes in one process, in the order of the properties files that the arguments name, and says what the last one
 * serves: lines "log" (or "unserved", or "future"), directory, start and end;
 * "offline" and directory; "started"; between tabs.
 *
 * A broker that does not start ends the process, as its own main program would. What it says is on standard error.
 */
public final class BrokerStart {
    // The controller writes a record each half second, however busy the machine is.
    private static final long PATIENCE_RECORDS = 20;
    private static final long PATIENCE_S = 200;

    public static void main(String[] paths) {
        try {
            KafkaRaftServer server = null;
            for (String path : paths) {
                Properties properties = new Properties();
                try (InputStream file = new FileInputStream(path)) {
                    properties.load(file);
                }
                server = new KafkaRaftServer(KafkaConfig.fromProps(properties, false), Time.SYSTEM);
                server.startup();
            }
            Field field = KafkaRaftServer.class.getDeclaredField("broker");
            field.setAccessible(true);
            say((BrokerServer) ((Option<?>) field.get(server)).get());
        } catch (Throwable error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
        System.exit(0);
    }

    private static void say(BrokerServer broker) throws InterruptedException {
        LogManager manager = broker.logManager();
        long lastRecord = broker.sharedServer().loader().lastAppliedOffset() + PATIENCE_RECORDS;
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
        for (UnifiedLog log : CollectionConverters.asJava(manager.allLogs())) {
            String kind = log.isFuture() ? "future" : isServed(broker, log, lastRecord, end) ? "log" : "unserved";
            System.out.println(kind + "\t" + log.dir() + "\t" + log.logStartOffset() + "\t" + log.logEndOffset());
        }
        List<File> live = CollectionConverters.asJava(manager.liveLogDirs());
        for (String name : broker.config().logDirs()) {
            // The broker may not have acted on the failure yet.
            if (!live.contains(new File(name)) || broker.logDirFailureChannel().hasOfflineLogDir(name))
                System.out.println("offline\t" + name);
        }
        System.out.println("started");
        System.out.flush();
    }

    /** Whether the broker leads the partition. It does so by the time that it knows of a record, or not at all. */
    private static boolean isServed(BrokerServer broker, UnifiedLog log, long lastRecord, long end) throws InterruptedException {
        while (true) {
            Option<Partition> partition = broker.replicaManager().onlinePartition(log.topicPartition());
            if (partition.isDefined() && partition.get().isLeader())
                return true;
            if (broker.sharedServer().loader().lastAppliedOffset() > lastRecord || System.nanoTime() > end)
                return false;
            Thread.sleep(20);
        }
    }
}
