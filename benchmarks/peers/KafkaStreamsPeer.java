import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.FileInputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.WindowStore;

/**
 * The sessions, tumbling counts and join of the benchmarks in Kafka Streams: KafkaStreamsPeer WORK SETTINGS.properties.
 * Runs until it is ended. Records are keyed by what is grouped by, and have their event time as their own.
 */
public final class KafkaStreamsPeer {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration GAP = Duration.ofSeconds(30);
    private static final Duration LENGTH = Duration.ofSeconds(60);
    private static final Duration WITHIN = Duration.ofSeconds(300);
    private static final Duration LATENESS = Duration.ofSeconds(5);

    /** Windows are emitted once a second on the clock; by default the store forgets them after their length in event time, and when
     * records are read faster than they happened, that is before they were emitted. */
    private static final Duration KEPT = Duration.ofDays(1);

    /** Count, sum and maximum: 24 bytes. */
    private record Figures(long n, long total, long most) {
        static final Figures NONE = new Figures(0, 0, Long.MIN_VALUE);

        Figures with(long value) {
            return new Figures(n + 1, total + value, Math.max(most, value));
        }

        static Figures merged(Figures one, Figures other) {
            return new Figures(one.n + other.n, one.total + other.total, Math.max(one.most, other.most));
        }
    }

    /** A value and its time, of an order or a payment: 16 bytes. */
    private record Amount(long amount, long ts) {}

    private static final Serde<Figures> FIGURES = serde(
            f -> ByteBuffer.allocate(24).putLong(f.n).putLong(f.total).putLong(f.most).array(),
            bytes -> {
                ByteBuffer buffer = ByteBuffer.wrap(bytes);
                return new Figures(buffer.getLong(), buffer.getLong(), buffer.getLong());
            });
    private static final Serde<Amount> AMOUNT = serde(
            a -> ByteBuffer.allocate(16).putLong(a.amount).putLong(a.ts).array(),
            bytes -> {
                ByteBuffer buffer = ByteBuffer.wrap(bytes);
                return new Amount(buffer.getLong(), buffer.getLong());
            });
    private static final Serde<Long> VALUE = serde(KafkaStreamsPeer::longs, bytes -> parsed(bytes).get("v").asLong());
    private static final Serde<Amount> RECORD = serde(
            a -> new byte[0],
            bytes -> {
                JsonNode node = parsed(bytes);
                return new Amount(node.get("amount").asLong(), node.get("ts").asLong());
            });

    private interface Encode<T> {
        byte[] of(T value);
    }

    private interface Decode<T> {
        T of(byte[] bytes);
    }

    private static <T> Serde<T> serde(Encode<T> encode, Decode<T> decode) {
        Serializer<T> to = (topic, value) -> value == null ? null : encode.of(value);
        Deserializer<T> from = (topic, bytes) -> bytes == null ? null : decode.of(bytes);
        return Serdes.serdeFrom(to, from);
    }

    private static byte[] longs(Long value) {
        return ByteBuffer.allocate(8).putLong(value).array();
    }

    private static JsonNode parsed(byte[] bytes) {
        try {
            return JSON.readTree(bytes);
        } catch (java.io.IOException error) {
            throw new IllegalArgumentException(new String(bytes, StandardCharsets.UTF_8), error);
        }
    }

    private static ObjectNode window(Windowed<String> key, Duration behind, long n) {
        ObjectNode row = JSON.createObjectNode().put("k", key.key());
        row.put("window_start", Instant.ofEpochMilli(key.window().start()).toString());
        row.put("window_end", Instant.ofEpochMilli(key.window().end() + behind.toMillis()).toString());
        return row.put("n", n);
    }

    private static void sessions(StreamsBuilder builder) {
        builder.stream("events", Consumed.with(Serdes.String(), VALUE))
                .groupByKey(Grouped.with(Serdes.String(), VALUE))
                .windowedBy(SessionWindows.ofInactivityGapAndGrace(GAP, LATENESS))
                .emitStrategy(EmitStrategy.onWindowClose())
                .aggregate(
                        () -> Figures.NONE,
                        (key, value, figures) -> figures.with(value),
                        (key, one, other) -> Figures.merged(one, other),
                        Materialized.<String, Figures, SessionStore<Bytes, byte[]>>with(Serdes.String(), FIGURES)
                                .withRetention(KEPT))
                .toStream()
                .map((key, figures) -> {
                    ObjectNode row = window(key, GAP, figures.n());
                    row.put("total", figures.total()).put("most", figures.most());
                    return org.apache.kafka.streams.KeyValue.pair(key.key(), row.toString());
                })
                .to("sessions-out", Produced.with(Serdes.String(), Serdes.String()));
    }

    private static void tumbling(StreamsBuilder builder) {
        builder.stream("events", Consumed.with(Serdes.String(), VALUE))
                .groupByKey(Grouped.with(Serdes.String(), VALUE))
                .windowedBy(TimeWindows.ofSizeAndGrace(LENGTH, LATENESS))
                .emitStrategy(EmitStrategy.onWindowClose())
                .count(Materialized.<String, Long, WindowStore<Bytes, byte[]>>with(Serdes.String(), Serdes.Long())
                        .withRetention(KEPT))
                .toStream()
                .map((key, n) -> org.apache.kafka.streams.KeyValue.pair(key.key(), window(key, Duration.ZERO, n).toString()))
                .to("tumbling-out", Produced.with(Serdes.String(), Serdes.String()));
    }

    private static void join(StreamsBuilder builder) {
        KStream<String, Amount> orders = builder.stream("orders", Consumed.with(Serdes.String(), RECORD));
        KStream<String, Amount> payments = builder.stream("payments", Consumed.with(Serdes.String(), RECORD));
        JoinWindows within = JoinWindows.ofTimeDifferenceAndGrace(WITHIN, LATENESS).before(Duration.ZERO);
        orders.join(
                        payments,
                        (id, order, payment) -> JSON.createObjectNode()
                                .put("order_id", id)
                                .put("amount", order.amount())
                                .put("ts", Instant.ofEpochMilli(order.ts()).toString())
                                .put("paid_amount", payment.amount())
                                .put("paid_ts", Instant.ofEpochMilli(payment.ts()).toString())
                                .toString(),
                        within,
                        StreamJoined.with(Serdes.String(), AMOUNT, AMOUNT))
                .to("join-out", Produced.with(Serdes.String(), Serdes.String()));
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (FileInputStream file = new FileInputStream(arguments[1])) {
            settings.load(file);
        }
        StreamsBuilder builder = new StreamsBuilder();
        switch (arguments[0]) {
            case "sessions" -> sessions(builder);
            case "tumbling" -> tumbling(builder);
            case "join" -> join(builder);
            default -> throw new IllegalArgumentException(arguments[0]);
        }
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        CountDownLatch ended = new CountDownLatch(1);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            ended.countDown();
            return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(20))));
        streams.start();
        ended.await();
        System.exit(1);
    }
}
