import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.common.message.MessageQueue;

/** A consumer that pulls where and when it is told to. */
@SuppressWarnings("deprecation")
final class Puller implements Session {
    private final String as;
    private final DefaultMQPullConsumer consumer;

    /** {@code suspend=MS} is how long the broker may keep a pull that finds nothing. */
    Puller(Command command) throws Exception {
        as = command.text("as");
        consumer = new DefaultMQPullConsumer(command.text("group"));
        consumer.setNamesrvAddr(command.text("namesrv"));
        consumer.setInstanceName(as);
        consumer.setHeartbeatBrokerInterval(3000);
        int suspend = command.number("suspend", 20_000);
        consumer.setBrokerSuspendMaxTimeMillis(suspend);
        consumer.setConsumerTimeoutMillisWhenSuspend(suspend + 10_000);
        consumer.start();
    }

    /**
     * {@code pull topic= broker= queue= offset= [max=]}: one pull, which waits for a message if
     * there is none.
     */
    @Override
    public void run(Command command) throws Exception {
        MessageQueue queue = new MessageQueue(command.text("topic"), command.text("broker"),
            command.number("queue", 0));
        PullResult result = consumer.pullBlockIfNotFound(queue, "*", command.number("offset", 0),
            command.number("max", 32));
        if (result.getMsgFoundList() != null) {
            result.getMsgFoundList().forEach(message -> Output.received(as, message));
        }
        Output.line(as, "pulled", "status", result.getPullStatus(),
            "nextBeginOffset", result.getNextBeginOffset(),
            "minOffset", result.getMinOffset(), "maxOffset", result.getMaxOffset());
    }

    @Override
    public void stop() {
        consumer.shutdown();
    }
}
