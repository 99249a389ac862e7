import java.io.PrintStream;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;

/** Writes one JSON object per line. */
final class Output {
    private static final PrintStream OUT = System.out;

    private Output() {
    }

    /** What anything else prints goes to standard error from here on. */
    static void take() {
        System.setOut(System.err);
    }

    /**
     * Writes {@code {"as":as,"event":event,key:value,...}}; the pairs are key, value, key, value
     * ...
     */
    static void line(String as, String event, Object... pairs) {
        StringBuilder text = new StringBuilder("{\"as\":");
        value(text, as);
        text.append(",\"event\":");
        value(text, event);
        for (int i = 0; i < pairs.length; i += 2) {
            text.append(',');
            value(text, pairs[i]);
            text.append(':');
            value(text, pairs[i + 1]);
        }
        text.append("}\n");
        synchronized (OUT) {
            OUT.print(text);
            OUT.flush();
        }
    }

    static void received(String as, MessageExt message) {
        String offsetMsgId = ((MessageClientExt) message).getOffsetMsgId();
        line(as, "received", "msgId", message.getMsgId(), "offsetMsgId", offsetMsgId,
            "topic", message.getTopic(),
            "queueId", message.getQueueId(), "queueOffset", message.getQueueOffset(),
            "body", new String(message.getBody(), java.nio.charset.StandardCharsets.UTF_8),
            "keys", message.getKeys(), "tags", message.getTags(),
            "number", message.getUserProperty("number"),
            "reconsumeTimes", message.getReconsumeTimes());
    }

    private static void value(StringBuilder text, Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean) {
            text.append(value);
        } else {
            string(text, value.toString());
        }
    }

    private static void string(StringBuilder text, String value) {
        text.append('"');
        for (int i = 0; i < value.length(); i++) {
            char c = value.charAt(i);
            if (c == '"' || c == '\\') {
                text.append('\\').append(c);
            } else if (c < ' ') {
                text.append(String.format("\\u%04x", (int) c));
            } else {
                text.append(c);
            }
        }
        text.append('"');
    }
}
