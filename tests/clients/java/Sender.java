import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * A producer. Message number n of the sender NAME has the body and the key {@code NAME-n}, the user
 * property {@code number=n}, and the tag that stands at n in {@code tags=A,B,...}.
 */
final class Sender implements Session {
    private final String as;
    private final DefaultMQProducer producer;
    private int next;
    private volatile boolean halted;

    Sender(Command command) throws Exception {
        as = command.text("as");
        producer = new DefaultMQProducer(command.text("group"));
        producer.setNamesrvAddr(command.text("namesrv"));
        producer.setInstanceName(as);
        producer.setHeartbeatBrokerInterval(3000);
        producer.setPollNameServerInterval(3000);
        // A cold start on a busy machine takes its time.
        producer.setSendMsgTimeout(10_000);
        producer.start();
    }

    /**
     * {@code send topic= mode=sync|async|oneway|batch count= [tags=] [size=] [every=MS]}; count=0
     * sends until halt.
     */
    @Override
    public void run(Command command) throws Exception {
        int count = command.number("count", 1);
        switch (command.text("mode")) {
            case "sync" -> sync(command, count);
            case "async" -> async(messages(command, count));
            case "oneway" -> oneway(messages(command, count));
            case "batch" -> batch(messages(command, count));
            default -> throw new IllegalArgumentException("no such mode");
        }
    }

    @Override
    public void halt() {
        halted = true;
    }

    @Override
    public void stop() {
        halted = true;
        producer.shutdown();
    }

    private void sync(Command command, int count) throws InterruptedException {
        for (int i = 0; (count == 0 || i < count) && !halted; i++) {
            Message message = message(command);
            try {
                sent(List.of(message), producer.send(message));
            } catch (InterruptedException interrupted) {
                throw interrupted;
            } catch (Exception error) {
                failed(message, error);
                Thread.sleep(100);
            }
            Thread.sleep(command.number("every", 0));
        }
    }

    private void async(List<Message> messages) throws Exception {
        CountDownLatch open = new CountDownLatch(messages.size());
        for (Message message : messages) {
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    sent(List.of(message), result);
                    open.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    failed(message, error);
                    open.countDown();
                }
            });
        }
        open.await();
    }

    private void oneway(List<Message> messages) throws Exception {
        for (Message message : messages) {
            producer.sendOneway(message);
            Output.line(as, "sent", "status", "ONEWAY", "topic", message.getTopic(),
                "body", body(message),
                "keys", message.getKeys(), "tags", message.getTags());
        }
    }

    private void batch(List<Message> messages) throws Exception {
        sent(messages, producer.send(messages));
    }

    private List<Message> messages(Command command, int count) {
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            messages.add(message(command));
        }
        return messages;
    }

    private Message message(Command command) {
        int number = next++;
        String name = as + "-" + number;
        String body = name + ".".repeat(Math.max(0, command.number("size", 0) - name.length()));
        String[] tags = command.text("tags", "T").split(",");
        Message message = new Message(command.text("topic"), tags[number % tags.length], name,
            body.getBytes(StandardCharsets.UTF_8));
        message.putUserProperty("number", String.valueOf(number));
        return message;
    }

    /**
     * A batch is answered once, with the ids of its messages separated by commas and the first
     * queue offset. It is printed without msgId: a 5.x batch has a unique key of its own, which the
     * broker gives to all its messages.
     */
    private void sent(List<Message> messages, SendResult result) {
        String msgId = messages.size() == 1 ? result.getMsgId() : null;
        String[] offsetMsgIds = result.getOffsetMsgId().split(",");
        for (int i = 0; i < messages.size(); i++) {
            Message message = messages.get(i);
            Output.line(as, "sent", "status", result.getSendStatus(), "msgId", msgId,
                "offsetMsgId", offsetMsgIds[i], "topic", message.getTopic(),
                "queueId", result.getMessageQueue().getQueueId(),
                "queueOffset", result.getQueueOffset() + i, "body", body(message),
                "keys", message.getKeys(), "tags", message.getTags());
        }
    }

    private void failed(Message message, Throwable error) {
        Output.line(as, "failed", "body", body(message), "error", error.toString());
    }

    private static String body(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }
}
