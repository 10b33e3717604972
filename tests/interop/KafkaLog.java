import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Delayed;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import java.util.stream.Collectors;

import org.apache.kafka.common.message.DescribeProducersResponseData.ProducerState;
import org.apache.kafka.common.record.FileRecords;
import org.apache.kafka.common.record.FileRecords.TimestampAndOffset;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MemoryRecords.RecordFilter;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.record.Records;
import org.apache.kafka.common.requests.ProduceResponse.RecordError;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.server.common.OffsetAndEpoch;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.LogAppendInfo;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogOffsetsListener;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.LogStartOffsetIncrementReason;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.RecordValidationException;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * A broker's log without the broker: answers the test's requests on standard input, one answer per request.
 *
 * A request is a letter and its arguments; an answer is "ok" or the name of an exception, followed by the result.
 * All integers are big-endian; strings are encoded as in DataOutput.writeUTF.
 */
public final class KafkaLog {
    private static final int READ_BYTES = 1 << 20;

    private final DataInputStream questions;
    private final DataOutputStream answers;
    private long nowMs;
    private UnifiedLog log;

    private KafkaLog(DataInputStream questions, DataOutputStream answers) {
        this.questions = questions;
        this.answers = answers;
    }

    public static void main(String[] arguments) throws Exception {
        DataOutputStream answers = new DataOutputStream(new BufferedOutputStream(System.out));
        // Output of libraries must not mix with the answers.
        System.setOut(System.err);
        new KafkaLog(new DataInputStream(new BufferedInputStream(System.in)), answers).serve();
    }

    private void serve() throws IOException {
        while (true) {
            byte question;
            try {
                question = questions.readByte();
            } catch (EOFException end) {
                return;
            }
            switch (question) {
                case 'O' -> open();
                case 'V' -> load();
                case 'A' -> append();
                case 'F' -> follow();
                case 'E' -> {
                    int epoch = questions.readInt();
                    long offset = questions.readLong();
                    act(() -> log.assignEpochStartOffset(epoch, offset));
                }
                case 'T' -> {
                    long offset = questions.readLong();
                    act(() -> log.truncateTo(offset));
                }
                case 'U' -> {
                    long offset = questions.readLong();
                    act(() -> log.truncateFullyAndStartAt(offset, Optional.empty()));
                }
                case 'D' -> {
                    long offset = questions.readLong();
                    act(() -> log.maybeIncrementLogStartOffset(
                        offset, LogStartOffsetIncrementReason.ClientRecordDeletion));
                }
                case 'R' -> act(() -> log.roll());
                case 'S' -> state();
                case 'X' -> endOffsetForEpoch();
                case 'G' -> fetch();
                case 'L' -> offsetForTimestamp();
                case 'B' -> records();
                case 'C' -> clean();
                default -> throw new IOException("unknown question " + question);
            }
            answers.flush();
        }
    }

    private void open() throws IOException {
        File directory = new File(questions.readUTF());
        nowMs = questions.readLong();
        boolean isClean = questions.readBoolean();
        long logStartOffset = questions.readLong();
        long recoveryPoint = questions.readLong();
        LogConfig config = config();
        act(() -> {
            // A test that has passed takes its directory with it.
            if (log != null && isClean && log.dir().exists())
                log.close();
            else if (log != null)
                log.closeHandlers();
            log = loaded(directory, config, isClean, logStartOffset, recoveryPoint);
        });
    }

    /** What loading a log leaves of it: its offsets, and the base offset and size of each segment. The log is closed. */
    private void load() throws IOException {
        File directory = new File(questions.readUTF());
        nowMs = questions.readLong();
        boolean isClean = questions.readBoolean();
        long logStartOffset = questions.readLong();
        long recoveryPoint = questions.readLong();
        LogConfig config = config();
        try {
            UnifiedLog loaded = loaded(directory, config, isClean, logStartOffset, recoveryPoint);
            answers.writeUTF("ok");
            answers.writeLong(loaded.logStartOffset());
            answers.writeLong(loaded.logEndOffset());
            List<LogSegment> segments = List.copyOf(loaded.logSegments());
            answers.writeInt(segments.size());
            for (LogSegment segment : segments) {
                answers.writeLong(segment.baseOffset());
                answers.writeLong(segment.size());
            }
            loaded.closeHandlers();
        } catch (Exception | Error refusal) {
            answers.writeUTF(refusal.getClass().getSimpleName());
            answers.writeUTF(String.valueOf(refusal.getMessage()));
        }
    }

    private LogConfig config() throws IOException {
        Map<String, String> properties = new HashMap<>();
        for (int left = questions.readInt(); left > 0; left--)
            properties.put(questions.readUTF(), questions.readUTF());
        return new LogConfig(properties);
    }

    private UnifiedLog loaded(
        File directory, LogConfig config, boolean isClean, long logStartOffset, long recoveryPoint
    ) throws IOException {
        return UnifiedLog.create(
            directory,
            config,
            logStartOffset,
            recoveryPoint,
            new AtOnce(),
            new BrokerTopicStats(),
            new StandingStill(),
            5 * 60 * 1000,
            new ProducerStateManagerConfig(86_400_000, false),
            600_000,
            new LogDirFailureChannel(10),
            isClean,
            Optional.empty(),
            new ConcurrentHashMap<>(),
            false,
            LogOffsetsListener.NO_OP_OFFSETS_LISTENER);
    }

    /**
     * Whether Kafka's own reader can read the records, and whether their offsets are consecutive; then the result of
     * the append.
     */
    private void append() throws IOException {
        AppendOrigin origin = AppendOrigin.valueOf(questions.readUTF());
        int leaderEpoch = questions.readInt();
        byte[] batch = questions.readNBytes(questions.readInt());
        describe(MemoryRecords.readableRecords(ByteBuffer.wrap(batch)));
        long endOffset = log.logEndOffset();
        try {
            LogAppendInfo info = log.appendAsLeader(
                MemoryRecords.readableRecords(ByteBuffer.wrap(batch)), leaderEpoch, origin);
            answers.writeUTF("ok");
            answers.writeLong(info.firstOffset());
            answers.writeLong(info.lastOffset());
            byte[] stored = log.logEndOffset() > endOffset ? bytesFrom(endOffset) : new byte[0];
            answers.writeInt(stored.length);
            answers.write(stored);
        } catch (RecordValidationException refusal) {
            answers.writeUTF(refusal.invalidException().getClass().getSimpleName());
            List<RecordError> errors = refusal.recordErrors();
            answers.writeInt(errors.size());
            for (RecordError error : errors)
                answers.writeInt(error.batchIndex);
        } catch (Exception | Error refusal) {
            // Snappy throws errors, and a claimed length of 2 GiB exhausts the heap.
            answers.writeUTF(refusal.getClass().getSimpleName());
            answers.writeInt(0);
        }
    }

    private void describe(MemoryRecords records) throws IOException {
        boolean isReadable = true;
        boolean areConsecutive = true;
        long expectedOffset = 0;
        try {
            for (Record record : records.records())
                areConsecutive &= record.offset() == expectedOffset++;
        } catch (Exception | Error unreadable) {
            isReadable = false;
        }
        answers.writeBoolean(isReadable);
        answers.writeBoolean(areConsecutive);
    }

    private byte[] bytesFrom(long offset) throws IOException {
        return bytesOf(log.read(offset, READ_BYTES, FetchIsolation.LOG_END, true).records);
    }

    private static byte[] bytesOf(Records records) throws IOException {
        byte[] bytes = new byte[records.sizeInBytes()];
        if (records instanceof FileRecords found)
            found.readInto(ByteBuffer.wrap(bytes), 0);
        return bytes;
    }

    /** The records of some batches, as a consumer sees them. */
    private void records() throws IOException {
        byte[] batches = questions.readNBytes(questions.readInt());
        ByteArrayOutputStream found = new ByteArrayOutputStream();
        try {
            for (RecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(batches)).batches()) {
                if (batch.isControlBatch())
                    continue;
                for (Record record : batch) {
                    record.ensureValid();
                    DataOutputStream row = new DataOutputStream(found);
                    row.writeLong(record.offset());
                    row.writeLong(record.timestamp());
                    row.writeInt(batch.timestampType().id);
                    writeNullable(row, record.key());
                    writeNullable(row, record.value());
                }
            }
        } catch (Exception | Error unreadable) {
            answers.writeUTF(unreadable.getClass().getSimpleName());
            return;
        }
        answers.writeUTF("ok");
        answers.writeInt(found.size());
        found.writeTo(answers);
    }

    private static void writeNullable(DataOutputStream row, ByteBuffer content) throws IOException {
        row.writeInt(content == null ? -1 : content.remaining());
        if (content != null)
            row.write(Utils.toArray(content));
    }

    /** The result of cleaning some batches when only these offsets survive. */
    private void clean() throws IOException {
        long nowMs = questions.readLong();
        Set<Long> surviving = new HashSet<>();
        for (int left = questions.readInt(); left > 0; left--)
            surviving.add(questions.readLong());
        byte[] batches = questions.readNBytes(questions.readInt());
        RecordFilter filter = new RecordFilter(nowMs, 0) {
            @Override
            protected BatchRetentionResult checkBatchRetention(RecordBatch batch) {
                return new BatchRetentionResult(BatchRetention.DELETE_EMPTY, false);
            }

            @Override
            protected boolean shouldRetainRecord(RecordBatch batch, Record record) {
                return surviving.contains(record.offset());
            }
        };
        ByteBuffer output = MemoryRecords.readableRecords(ByteBuffer.wrap(batches))
            .filterTo(filter, ByteBuffer.allocate(READ_BYTES), BufferSupplier.NO_CACHING)
            .outputBuffer();
        output.flip();
        answers.writeInt(output.remaining());
        answers.write(Utils.toArray(output));
    }

    private void fetch() throws IOException {
        long offset = questions.readLong();
        int maxBytes = questions.readInt();
        boolean hasOneMessage = questions.readBoolean();
        try {
            byte[] found = bytesOf(log.read(offset, maxBytes, FetchIsolation.LOG_END, hasOneMessage).records);
            answers.writeUTF("ok");
            answers.writeInt(found.length);
            answers.write(found);
        } catch (Exception refusal) {
            answers.writeUTF(refusal.getClass().getSimpleName());
        }
    }

    private void offsetForTimestamp() throws IOException {
        Optional<TimestampAndOffset> found =
            log.fetchOffsetByTimestamp(questions.readLong(), Optional.empty()).timestampAndOffsetOpt();
        answers.writeBoolean(found.isPresent());
        answers.writeLong(found.map(each -> each.offset).orElse(-1L));
        answers.writeLong(found.map(each -> each.timestamp).orElse(-1L));
        answers.writeInt(found.flatMap(each -> each.leaderEpoch).orElse(-1));
    }

    private void follow() throws IOException {
        int leaderEpoch = questions.readInt();
        byte[] batches = questions.readNBytes(questions.readInt());
        act(() -> log.appendAsFollower(MemoryRecords.readableRecords(ByteBuffer.wrap(batches)), leaderEpoch));
    }

    private void endOffsetForEpoch() throws IOException {
        Optional<OffsetAndEpoch> found = log.endOffsetForEpoch(questions.readInt());
        answers.writeInt(found.map(OffsetAndEpoch::epoch).orElse(-1));
        answers.writeLong(found.map(OffsetAndEpoch::offset).orElse(-1L));
    }

    private void state() throws IOException {
        // The log is its own only replica.
        log.updateHighWatermark(log.logEndOffset());
        answers.writeLong(log.logStartOffset());
        answers.writeLong(log.logEndOffset());
        answers.writeLong(log.lastStableOffset());
        answers.writeUTF(log.leaderEpochCache().epochEntries().stream()
            .map(entry -> entry.epoch + " " + entry.startOffset)
            .collect(Collectors.joining(",")));
        answers.writeUTF(log.activeProducers().stream()
            .sorted(Comparator.comparingLong(ProducerState::producerId))
            .map(each -> each.producerId() + " " + each.producerEpoch() + " " + each.lastSequence() + " "
                + each.coordinatorEpoch() + " " + each.currentTxnStartOffset() + " " + each.lastTimestamp())
            .collect(Collectors.joining(",")));
    }

    private interface Action {
        void run() throws Exception;
    }

    private void act(Action action) throws IOException {
        try {
            action.run();
            answers.writeUTF("ok");
        } catch (Exception refusal) {
            answers.writeUTF(refusal.getClass().getSimpleName());
        }
    }

    /** Runs the broker's background tasks before the call returns. */
    private static final class AtOnce implements Scheduler {
        @Override
        public void startup() { }

        @Override
        public void shutdown() { }

        @Override
        public ScheduledFuture<?> schedule(String name, Runnable task, long delayMs, long periodMs) {
            if (delayMs == 0 && periodMs < 0)
                task.run();
            return new Done();
        }

        @Override
        public void resizeThreadPool(int newSize) { }
    }

    private static final class Done extends CompletableFuture<Void> implements ScheduledFuture<Void> {
        private Done() {
            complete(null);
        }

        @Override
        public long getDelay(TimeUnit unit) {
            return 0;
        }

        @Override
        public int compareTo(Delayed other) {
            return 0;
        }
    }

    private final class StandingStill implements Time {
        @Override
        public long milliseconds() {
            return nowMs;
        }

        @Override
        public long nanoseconds() {
            return nowMs * 1_000_000;
        }

        @Override
        public void sleep(long ms) { }

        @Override
        public void waitObject(Object object, Supplier<Boolean> condition, long deadlineMs) { }
    }
}
